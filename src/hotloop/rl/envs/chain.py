"""The old name of `frame_preprocessing`: importing from here raises an error that names the new module."""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        f"hotloop.rl.envs.chain.{name} has moved; import FramePreprocessing (formerly Chain) from "
        "hotloop.rl.envs.frame_preprocessing and pass it as preprocessing= instead of chain=."
    )
