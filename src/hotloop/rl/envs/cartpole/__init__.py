"""CartPole with bit-identical dynamics to Gymnasium's, in batches."""
