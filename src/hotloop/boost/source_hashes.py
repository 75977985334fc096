"""Hashes of the library functions that kernels replace; written by `write_source_hashes.py`."""

VERSIONS = "2.7.0 to 2.9.2"
HASHES: dict[str, set[str]] = {
    "sb3_contrib.common.maskable.buffers.MaskableRolloutBuffer._get_samples": {
        "1b02a998e987de7d",
        "35fd32cc58eb8dc4",
    },
    "sb3_contrib.common.maskable.buffers.MaskableRolloutBuffer.add": {"2594d5a253b73f2c", "ac4de72d12992222"},
    "sb3_contrib.common.maskable.buffers.MaskableRolloutBuffer.get": {"312145643454cf11", "66ac1b8d0153973f"},
    "sb3_contrib.common.maskable.buffers.MaskableRolloutBuffer.reset": {"a7da5441f59179d7"},
    "sb3_contrib.common.maskable.distributions.MaskableCategorical.apply_masking": {
        "18f7efe28a6c70fc",
        "32791e6db5640acf",
    },
    "sb3_contrib.common.maskable.distributions.MaskableCategorical.entropy": {"8d1703dbc1c43e41"},
    "sb3_contrib.common.maskable.distributions.MaskableCategoricalDistribution.apply_masking": {
        "d0b28f31c4255bd4",
        "f5acaa8472ef33b0",
    },
    "sb3_contrib.common.maskable.distributions.MaskableCategoricalDistribution.entropy": {
        "27c11d5b913f4762",
        "7819f6f77de6476f",
    },
    "sb3_contrib.common.maskable.distributions.MaskableCategoricalDistribution.log_prob": {
        "aa642e81aac4b0a9",
        "daa22a340c982725",
    },
    "sb3_contrib.common.maskable.distributions.MaskableCategoricalDistribution.mode": {
        "1c2a760d7b9ba081",
        "acadc31a1d8d66ca",
    },
    "sb3_contrib.common.maskable.distributions.MaskableCategoricalDistribution.proba_distribution": {
        "f16f2100e5c7aa8f"
    },
    "sb3_contrib.common.maskable.distributions.MaskableCategoricalDistribution.sample": {
        "34ae253ee36ed6b4",
        "3a37ad249acc13da",
    },
    "sb3_contrib.common.maskable.distributions.MaskableMultiCategoricalDistribution.apply_masking": {
        "1eb9faf6d25394f6",
        "b7bba3d8e954f536",
    },
    "sb3_contrib.common.maskable.distributions.MaskableMultiCategoricalDistribution.entropy": {
        "c3275234166fecd6"
    },
    "sb3_contrib.common.maskable.distributions.MaskableMultiCategoricalDistribution.log_prob": {
        "a3f3508bc8a7af71",
        "e63c9bbd03fb3362",
    },
    "sb3_contrib.common.maskable.distributions.MaskableMultiCategoricalDistribution.mode": {
        "22466b3a7df75533"
    },
    "sb3_contrib.common.maskable.distributions.MaskableMultiCategoricalDistribution.proba_distribution": {
        "1005dba9c5438459"
    },
    "sb3_contrib.common.maskable.distributions.MaskableMultiCategoricalDistribution.sample": {
        "3046cffd99aec7e8"
    },
    "sb3_contrib.common.maskable.policies.MaskableActorCriticPolicy._get_action_dist_from_latent": {
        "0ee67794d264d63a"
    },
    "sb3_contrib.common.maskable.policies.MaskableActorCriticPolicy._predict": {
        "d3ca43e97154a01a",
        "fcb69e6bbead7a80",
    },
    "sb3_contrib.common.maskable.policies.MaskableActorCriticPolicy.evaluate_actions": {
        "3239d0932a14be74",
        "5a703f89c8735907",
    },
    "sb3_contrib.common.maskable.policies.MaskableActorCriticPolicy.extract_features": {
        "00a3b0847ab5f35b",
        "79203d1f39036f8d",
    },
    "sb3_contrib.common.maskable.policies.MaskableActorCriticPolicy.forward": {
        "66416cd704feb622",
        "f48636d1136820ca",
    },
    "sb3_contrib.common.maskable.policies.MaskableActorCriticPolicy.get_distribution": {
        "36b16484a8c25aa5",
        "927965bcf7b8d327",
    },
    "sb3_contrib.common.maskable.policies.MaskableActorCriticPolicy.predict": {
        "0481eca0603992f1",
        "19b2d8c68c3704f1",
        "59f895544bb5ad52",
    },
    "sb3_contrib.common.maskable.policies.MaskableActorCriticPolicy.predict_values": {"d0ba30455fc3a33e"},
    "sb3_contrib.ppo_mask.ppo_mask.MaskablePPO.collect_rollouts": {"31eda47f7427601d", "bd81015ecb4e6827"},
    "sb3_contrib.ppo_mask.ppo_mask.MaskablePPO.train": {"9bb03a463a20b783", "eb3bf418baedd592"},
    "stable_baselines3.a2c.a2c.A2C.train": {"afd008e46b891fd6"},
    "stable_baselines3.common.base_class.BaseAlgorithm._update_learning_rate": {
        "9a38136ad436a32e",
        "df15d05ff59513df",
    },
    "stable_baselines3.common.buffers.BaseBuffer._normalize_obs": {"57616db756e61f4a", "a520b007269593de"},
    "stable_baselines3.common.buffers.BaseBuffer._normalize_reward": {"3dea534178c1b1b9", "d2e97bdcd4d80327"},
    "stable_baselines3.common.buffers.BaseBuffer.sample": {"42d22773df09e4ea", "6c9b882850c44be8"},
    "stable_baselines3.common.buffers.BaseBuffer.swap_and_flatten": {"1c8ec7854f8e9597"},
    "stable_baselines3.common.buffers.BaseBuffer.to_torch": {"72934f740a54f0a1"},
    "stable_baselines3.common.buffers.ReplayBuffer.__init__": {"f6f473dd4ffe7669", "fa0612fb3a1064c8"},
    "stable_baselines3.common.buffers.ReplayBuffer._get_samples": {"036d9628e7ba56c2", "cb374861cb3a0f8f"},
    "stable_baselines3.common.buffers.ReplayBuffer.add": {"847b998bf164a32f"},
    "stable_baselines3.common.buffers.ReplayBuffer.sample": {"0b56f0ad5e7efba0", "e09410f692815bb0"},
    "stable_baselines3.common.buffers.RolloutBuffer._get_samples": {
        "01fc523eb5982acf",
        "4f4852fa6826b9c7",
        "aec3cdbf17fdba17",
    },
    "stable_baselines3.common.buffers.RolloutBuffer.add": {"f0f20b7b4e3061d7"},
    "stable_baselines3.common.buffers.RolloutBuffer.compute_returns_and_advantage": {"d711240399ee22b8"},
    "stable_baselines3.common.buffers.RolloutBuffer.get": {"5e423a08580d5234", "c95cae675733c965"},
    "stable_baselines3.common.buffers.RolloutBuffer.reset": {"de3f4d0fdcef529f", "de8f977b26158eed"},
    "stable_baselines3.common.distributions.CategoricalDistribution.entropy": {"7819f6f77de6476f"},
    "stable_baselines3.common.distributions.CategoricalDistribution.log_prob": {"aa642e81aac4b0a9"},
    "stable_baselines3.common.distributions.CategoricalDistribution.mode": {"1c2a760d7b9ba081"},
    "stable_baselines3.common.distributions.CategoricalDistribution.proba_distribution": {"5c70228bb2c30de2"},
    "stable_baselines3.common.distributions.CategoricalDistribution.sample": {"34ae253ee36ed6b4"},
    "stable_baselines3.common.distributions.DiagGaussianDistribution.actions_from_params": {
        "680fe55ae4d09460"
    },
    "stable_baselines3.common.distributions.DiagGaussianDistribution.entropy": {
        "45a4c98e7158dee9",
        "e2bc6051d3308c91",
    },
    "stable_baselines3.common.distributions.DiagGaussianDistribution.log_prob": {"fed76452a114fb50"},
    "stable_baselines3.common.distributions.DiagGaussianDistribution.mode": {"c49cdb334c6ad44c"},
    "stable_baselines3.common.distributions.DiagGaussianDistribution.proba_distribution": {
        "c9d58a5817631636"
    },
    "stable_baselines3.common.distributions.DiagGaussianDistribution.sample": {"a33bd1166df3b198"},
    "stable_baselines3.common.distributions.MultiCategoricalDistribution.entropy": {"b932e72d04539504"},
    "stable_baselines3.common.distributions.MultiCategoricalDistribution.log_prob": {
        "476fefaf6e5113b3",
        "f1c080cc45c1eb42",
    },
    "stable_baselines3.common.distributions.MultiCategoricalDistribution.mode": {"0578948e9de7aa3d"},
    "stable_baselines3.common.distributions.MultiCategoricalDistribution.proba_distribution": {
        "07732abf2a484686"
    },
    "stable_baselines3.common.distributions.MultiCategoricalDistribution.sample": {"764ed81c3f610d17"},
    "stable_baselines3.common.distributions.SquashedDiagGaussianDistribution.__init__": {
        "6f42ca813a90bd90",
        "cf0c63b5e4faaa41",
    },
    "stable_baselines3.common.distributions.SquashedDiagGaussianDistribution.log_prob": {
        "724a4b4b86210d0d",
        "978cfd65e7ff4d1f",
    },
    "stable_baselines3.common.distributions.SquashedDiagGaussianDistribution.log_prob_from_params": {
        "4ce6711c4dedf898"
    },
    "stable_baselines3.common.distributions.SquashedDiagGaussianDistribution.mode": {"9b0ea4dc9ecd3ba0"},
    "stable_baselines3.common.distributions.SquashedDiagGaussianDistribution.proba_distribution": {
        "2317797328cb0edd"
    },
    "stable_baselines3.common.distributions.SquashedDiagGaussianDistribution.sample": {"23eac0fcd6b61f02"},
    "stable_baselines3.common.distributions.sum_independent_dims": {"ec75faab97a87004"},
    "stable_baselines3.common.off_policy_algorithm.OffPolicyAlgorithm._sample_action": {
        "0c5d0b18f8537020",
        "7e2e8e070d124eb4",
        "896d6271a20e3b9c",
    },
    "stable_baselines3.common.on_policy_algorithm.OnPolicyAlgorithm.collect_rollouts": {
        "27ac5b1b30a0552e",
        "c5e7b9399a318d3d",
    },
    "stable_baselines3.common.policies.ActorCriticPolicy._get_action_dist_from_latent": {"4b60c2587c4926e8"},
    "stable_baselines3.common.policies.ActorCriticPolicy._predict": {"6aa9398754a3740d"},
    "stable_baselines3.common.policies.ActorCriticPolicy.evaluate_actions": {
        "5499f6b4077c0a0f",
        "9fe221d606d47511",
    },
    "stable_baselines3.common.policies.ActorCriticPolicy.extract_features": {
        "bdef5b205248c0a8",
        "ff1765083034039b",
    },
    "stable_baselines3.common.policies.ActorCriticPolicy.forward": {"6e66bea5e8a2cb53"},
    "stable_baselines3.common.policies.ActorCriticPolicy.get_distribution": {"174bcf59d08db55d"},
    "stable_baselines3.common.policies.ActorCriticPolicy.predict_values": {"d0ba30455fc3a33e"},
    "stable_baselines3.common.policies.BaseModel.extract_features": {"8e63d7ed5fd93d41"},
    "stable_baselines3.common.policies.BaseModel.is_vectorized_observation": {
        "5b00d32b1fd22c4c",
        "76f592ab05b06cbd",
    },
    "stable_baselines3.common.policies.BaseModel.obs_to_tensor": {
        "64c57b83e4cfde8d",
        "7c5c27b6d8471a07",
        "ba81e8ba02c72d2e",
    },
    "stable_baselines3.common.policies.BaseModel.set_training_mode": {"c96e7343e1c451f4"},
    "stable_baselines3.common.policies.BasePolicy.predict": {
        "a1107a728464b32b",
        "bb0b09280a9827c3",
        "c9ee80a2ed0bfd90",
    },
    "stable_baselines3.common.policies.BasePolicy.scale_action": {"cee669d519585e81"},
    "stable_baselines3.common.policies.BasePolicy.unscale_action": {"f695a35d4a4dc68a"},
    "stable_baselines3.common.policies.ContinuousCritic.__init__": {"e8d88be3f8890cd6"},
    "stable_baselines3.common.policies.ContinuousCritic.forward": {"8e4e043725690024"},
    "stable_baselines3.common.policies.ContinuousCritic.q1_forward": {"1cc6ed51c3d1a3f9"},
    "stable_baselines3.common.preprocessing.preprocess_obs": {"ce1224439de21f6d", "fa997f9dd6abe874"},
    "stable_baselines3.common.torch_layers.FlattenExtractor.forward": {"49aa38c67c3e051e"},
    "stable_baselines3.common.torch_layers.MlpExtractor.forward": {"61d01f9f0b18e9b3"},
    "stable_baselines3.common.torch_layers.MlpExtractor.forward_actor": {"b9c153ca1791e25c"},
    "stable_baselines3.common.torch_layers.MlpExtractor.forward_critic": {"99c5e81cc7b2cd5f"},
    "stable_baselines3.common.utils.explained_variance": {"7f16bc4ae95d1a4f"},
    "stable_baselines3.common.utils.obs_as_tensor": {
        "454f73c5d03d0283",
        "5d9b4e3bf3312790",
        "f13cc2dcc88ef646",
    },
    "stable_baselines3.common.utils.polyak_update": {"282f7ba1fbf5f299", "c7fa34985984a8f1"},
    "stable_baselines3.dqn.dqn.DQN.train": {"00f82707241537bc"},
    "stable_baselines3.dqn.policies.DQNPolicy._build": {"46679357d351cce7"},
    "stable_baselines3.dqn.policies.DQNPolicy._predict": {"8ac01ad967a256d9"},
    "stable_baselines3.dqn.policies.DQNPolicy.set_training_mode": {"459c98a75e530400"},
    "stable_baselines3.dqn.policies.QNetwork.__init__": {"1ddcfd77e06e1010", "9c00c7c234ed53fe"},
    "stable_baselines3.dqn.policies.QNetwork._predict": {"e0f055353ce34e11"},
    "stable_baselines3.dqn.policies.QNetwork.forward": {"cc9d848244c23744"},
    "stable_baselines3.ppo.ppo.PPO.train": {"2192abb90e1bb2b7"},
    "stable_baselines3.sac.policies.Actor.__init__": {"babcc8f4a982ef07"},
    "stable_baselines3.sac.policies.Actor._predict": {"ae176dc181a3466a"},
    "stable_baselines3.sac.policies.Actor.action_log_prob": {"068c6bf74075186e"},
    "stable_baselines3.sac.policies.Actor.forward": {"df68530a7fd91ab5"},
    "stable_baselines3.sac.policies.Actor.get_action_dist_params": {"e87f3b71d7c96fd3"},
    "stable_baselines3.sac.policies.SACPolicy._build": {"9dd61e190cb40b7e"},
    "stable_baselines3.sac.policies.SACPolicy._predict": {"41934cdbe3c038d3"},
    "stable_baselines3.sac.policies.SACPolicy.set_training_mode": {"f5bf5022716f3605"},
    "stable_baselines3.sac.sac.SAC.train": {"1fbcbc6cbe6f23bb"},
    "stable_baselines3.td3.policies.Actor.__init__": {"ae54407ae755c2f2"},
    "stable_baselines3.td3.policies.Actor._predict": {"641aff4465c638d6"},
    "stable_baselines3.td3.policies.Actor.forward": {"ae5c650627641d1d"},
    "stable_baselines3.td3.policies.TD3Policy._build": {"a99e0b2ee465c2c8"},
    "stable_baselines3.td3.policies.TD3Policy._predict": {"a9c155b0a1867800"},
    "stable_baselines3.td3.policies.TD3Policy.set_training_mode": {"f5bf5022716f3605"},
    "stable_baselines3.td3.td3.TD3.train": {"a1d2cef675359fce"},
}
