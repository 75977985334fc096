"""Tells where the names of this module went."""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        f"{name} is not in hotloop.rl.envs.chain any more; import FramePreprocessing (once Chain) from "
        "hotloop.rl.envs.frame_preprocessing and pass it as preprocessing=, not chain=."
    )
