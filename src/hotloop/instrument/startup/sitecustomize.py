"""Python imports this at start-up: `hotloop run` and `hotloop boost` put its folder first on PYTHONPATH.

It runs the user's own sitecustomize, then starts recording with HOTLOOP_RUN and boosts with HOTLOOP_BOOST. A
failure here must not keep the user's program from running, so everything is imported inside functions, where
an exception can be caught.
"""

import os
import sys


def _users_own() -> None:
    """Import the sitecustomize that Python would have found without us."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _begin(target: str, done: str) -> None:
    """Call "module:function"; `done` says what does not happen when that fails."""
    import importlib

    name, _, function = target.partition(":")
    try:
        module = importlib.import_module(name)
    except ImportError:
        sys.path.append(os.environ.get("HOTLOOP_HOME", ""))
        try:
            module = importlib.import_module(name)
        except ImportError as missing:
            print(f"hotloop: {sys.executable} is not {done}: {missing}", file=sys.stderr)
            return
        finally:
            sys.path.remove(os.environ.get("HOTLOOP_HOME", ""))
    try:
        getattr(module, function)()
    except Exception as error:
        print(f"hotloop: this process is not {done}: {error!r}", file=sys.stderr)


def _is_of_ray() -> bool:
    """Whether this is a daemon, a worker or the command line of Ray; forgets the recording if so.

    Daemons do not train and may outlive the run. Workers join the capture when they get their job.
    """
    words = getattr(sys, "orig_argv", [])[1:4]
    of_ray = any(
        f"{os.sep}site-packages{os.sep}ray{os.sep}" in word or word.endswith(f"{os.sep}bin{os.sep}ray")
        for word in words
        if not word.startswith("-")
    )
    if of_ray:
        for name in ("HOTLOOP_RUN", "HOTLOOP_RUN_CHILD", "HOTLOOP_CAPTURE", "HOTLOOP_RUN_ID"):
            os.environ.pop(name, None)
    return of_ray


try:
    _users_own()
finally:
    if os.environ.get("HOTLOOP_RUN") and _is_of_ray():
        pass
    elif os.environ.get("HOTLOOP_RUN"):
        _begin("hotloop.instrument.bootstrap:instrument_process", "recorded")
    if os.environ.get("HOTLOOP_BOOST"):
        _begin("hotloop.boost.bootstrap:boost_process", "boosted")
