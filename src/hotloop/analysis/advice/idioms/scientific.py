"""Environments and wrappers that ask scientific libraries for a single number or picture at a time."""

from __future__ import annotations

import ast

from hotloop.analysis.advice.idioms.questions import call_of, is_loop
from hotloop.analysis.advice.idioms.registry import Match, idiom
from hotloop.analysis.hot_statements import Spot
from hotloop.analysis.source_names import dotted

# Classes and functions that prepare data for many cheap queries
PREPARES = (
    *("cKDTree", "KDTree", "BallTree", "NearestNeighbors", "Delaunay", "ConvexHull", "Voronoi"),
    *("interp1d", "CubicSpline", "UnivariateSpline", "RegularGridInterpolator", "RectBivariateSpline"),
    *("InterpolatedUnivariateSpline", "PchipInterpolator", "Akima1DInterpolator", "make_interp_spline"),
    *("LinearNDInterpolator", "NearestNDInterpolator", "RBFInterpolator", "splrep", "interp2d"),
    *("butter", "cheby1", "cheby2", "firwin", "iirfilter", "get_window", "gaussian_kde", "poly1d", "STRtree"),
)
BUILDERS = ("__init__", "__post_init__", "__setstate__", "reset", "seed", "setup", "build", "load")
CHANGES = frozenset(
    {"append", "extend", "insert", "pop", "remove", "add", "update", "clear", "sort", "fill", "put"}
)
ODE_SOLVERS = ("solve_ivp", "odeint", "integrate.ode", "RK45", "integrate.quad", "quad")


@idiom
def prepared_for_one_query(spot: Spot) -> Match | None:
    """`cKDTree(self.walls).query(x)` in a step: the tree is built for a single question."""
    if is_loop(spot) or spot.function == "<module>" or _builds(spot.function):
        return None
    for name, call in spot.calls():
        last = name.rpartition(".")[2]
        if last not in PREPARES or last in spot.names.functions or call_of(spot, name) is None:
            continue
        given = [n for argument in call.args for n in _names_read(argument)]
        if not all(_changes_with_episodes_only(spot, one) for one in given):
            continue
        return Match(
            "prepared_for_one_query",
            f"Build {last} once, where its data are made, not for every query",
            "It prepares its data (sorts, fits or decomposes them) so that many queries are cheap; here "
            "it is thrown away after one.",
            "Build it in the constructor, or in reset() if the data change with the episode, and keep it.",
            (0.7, 0.95, 1.0),
            part=call,
        )
    return None


def _builds(function: str) -> bool:
    return function.rpartition(".")[2].lstrip("_").startswith(tuple(b.lstrip("_") for b in BUILDERS))


def _names_read(node: ast.expr) -> list[str]:
    """Names and attributes, as written; not the parts of longer ones."""
    if isinstance(node, ast.Name | ast.Attribute):
        return [dotted(node)]
    return [
        name
        for child in ast.iter_child_nodes(node)
        if isinstance(child, ast.expr)
        for name in _names_read(child)
    ]


def _changes_with_episodes_only(spot: Spot, name: str) -> bool:
    """Whether only constructors and resets change it: an attribute of self, or a constant."""
    parts = name.split(".")
    if parts[0] != "self" or len(parts) < 2:
        # A name of the module: not a local one, nor an argument
        return not any(
            isinstance(n, ast.Name | ast.arg) and _stores(n, parts[0]) for n in ast.walk(spot.scope)
        )
    own = ".".join(parts[:2])
    for tree in spot.names.trees:
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef) or _builds(function.name):
                continue
            if any(_changes(node, own) for node in ast.walk(function)):
                return False
    return True


def _changes(node: ast.AST, own: str) -> bool:
    """Whether it assigns to an attribute or its items, or calls a method that changes it."""
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        target = node.value if isinstance(node, ast.Subscript) else node
        return f"{dotted(target)}.".startswith(f"{own}.")
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CHANGES
        and dotted(node.func.value) == own
    )


def _stores(node: ast.Name | ast.arg, name: str) -> bool:
    if isinstance(node, ast.arg):
        return node.arg == name
    return node.id == name and isinstance(node.ctx, ast.Store)


@idiom
def solver_for_each_step(spot: Spot) -> Match | None:
    """`solve_ivp(dynamics, (0, dt), state)`: a solver for long, difficult problems, for one short step."""
    call = call_of(spot, *ODE_SOLVERS)
    if is_loop(spot) or call is None or (spot.function == "<module>" and not spot.loops):
        return None
    if not any(name.startswith("scipy.integrate.") for name in spot.called):
        return None
    return Match(
        "solver_for_each_step",
        "Integrate with a few fixed steps instead of a SciPy solver",
        "scipy.integrate sets up an adaptive solver, in Python, at every call; for one short step of a small "
        "system that takes far longer than the dynamics.",
        "Write a fixed-step Runge-Kutta (four calls of the dynamics) in plain floats, or compile dynamics "
        "and loop with numba. Results change within the solver's tolerance.",
        (0.4, 0.8, 0.97),
        safety="semantic",
        effort="hours",
    )


@idiom
def resizing_slowly(spot: Spot) -> Match | None:
    """Frames that PIL, scikit-image or SciPy shrinks one by one."""
    by_opencv = any(name.startswith("cv2.") for name, _ in spot.calls())
    if is_loop(spot) or spot.function == "<module>" or by_opencv:
        return None
    pil = call_of(spot, "Image.fromarray") or any(
        name.startswith("PIL.Image.Image.resize") for name in spot.called
    )
    pil = pil and any(name.endswith((".resize", ".thumbnail")) for name, _ in spot.calls())
    slow = (
        "skimage.transform.",
        "scipy.ndimage._interpolation.",
        "scipy.ndimage.zoom",
        "torchvision.transforms.",
    )
    other = call_of(
        spot, "transform.resize", "resize", "rescale", "ndimage.zoom", "zoom", ".transform", ".transforms"
    )
    if not pil and not (other and any(name.startswith(slow) for name in spot.called)):
        return None
    return Match(
        "resizing_slowly",
        "Shrink frames with OpenCV, or render them small",
        "The frame is converted to another kind of image, filtered and converted back, at every step.",
        "cv2.resize(frame, (84, 84), interpolation=cv2.INTER_AREA) on uint8 arrays (gray first) is several "
        "times faster; slicing (frame[::2, ::2]) or rendering at the final size is faster still.",
        (0.4, 0.8, 0.97),
        safety="semantic",
        library_calls=("torchvision",),
    )
