"""Python imports this at start-up because `hotloop run` put its folder first on PYTHONPATH.

It runs the user's own sitecustomize, then starts recording. A failure here must not keep the user's program
from running, so everything is imported inside functions, where an exception can be caught.
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


def _begin() -> None:
    try:
        from hotloop.instrument.bootstrap import instrument_process
    except ImportError:
        sys.path.append(os.environ.get("HOTLOOP_HOME", ""))
        try:
            from hotloop.instrument.bootstrap import instrument_process
        except ImportError as missing:
            print(f"hotloop: {sys.executable} is not recorded: {missing}", file=sys.stderr)
            return
        finally:
            sys.path.remove(os.environ.get("HOTLOOP_HOME", ""))
    try:
        instrument_process()
    except Exception as error:
        print(f"hotloop: this process is not recorded: {error!r}", file=sys.stderr)


try:
    _users_own()
finally:
    if os.environ.get("HOTLOOP_RUN"):
        _begin()
