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


RAYS_OWN = ("_private", "autoscaler", "core", "dashboard", "scripts", "util/client")  # folders of its package


def _is_of_ray() -> bool:
    """Whether this is a daemon, a worker or the command line of Ray; forgets the recording if so.

    Daemons do not train and may outlive the run. Workers join the capture when they get their job.
    """
    if not _begins_ray():
        return False
    for name in ("HOTLOOP_RUN", "HOTLOOP_RUN_CHILD", "HOTLOOP_CAPTURE", "HOTLOOP_RUN_ID"):
        os.environ.pop(name, None)
    return True


def _begins_ray() -> bool:
    """Whether Python was started with a program of Ray, wherever that is installed."""
    words = iter(getattr(sys, "orig_argv", [])[1:])
    for word in words:
        if word == "-m":
            return next(words, "").startswith(tuple(f"ray.{name.replace('/', '.')}." for name in RAYS_OWN))
        if word in ("-X", "-W"):
            next(words, None)
        elif word == "-c" or not word.startswith("-"):
            command = f"{os.sep}bin{os.sep}ray"
            return word.endswith(command) or any(_is_in_ray(word, name) for name in RAYS_OWN)
    return False


def _is_in_ray(file: str, folder: str) -> bool:
    """Whether a file is in this folder of Ray's package, and not in one of the user's with the same name."""
    parent, found, _ = file.rpartition(f"{os.sep}ray{os.sep}{folder}{os.sep}")
    return bool(found) and os.path.isfile(os.path.join(parent, "ray", "_private", "worker.py"))


try:
    _users_own()
finally:
    if os.environ.get("HOTLOOP_RUN") and _is_of_ray():
        pass
    elif os.environ.get("HOTLOOP_RUN"):
        _begin("hotloop.instrument.bootstrap:instrument_process", "recorded")
    if os.environ.get("HOTLOOP_BOOST"):
        _begin("hotloop.boost.bootstrap:boost_process", "boosted")
