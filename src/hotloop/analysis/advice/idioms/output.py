"""Scalars read one by one, logging, printing and files."""

from __future__ import annotations

import ast
import re

from hotloop.analysis.advice.idioms.questions import call_of, is_loop, is_stream, is_text
from hotloop.analysis.advice.idioms.registry import Match, idiom
from hotloop.analysis.hot_statements import Spot
from hotloop.analysis.source_names import dotted

SAVED = re.compile(
    r"(^|[._])(save|dump|write|export|serialize|checkpoint|to_csv|to_parquet|to_hdf|to_pickle)(_|$|\w*$)"
)
READ = re.compile(
    r"(^|[._])(read_csv|read_json|read_parquet|read_pickle|read_text|read_bytes|loadtxt|genfromtxt|load_results"
    r"|read_excel|read_gml|read_graphml|imread|from_xml_path|from_xml_string|loadURDF|loadMJCF|loadSDF|load)$"
)


RUNS_OTHERS = ("asyncio.", "concurrent.", "multiprocessing.", "threading.", "runpy.")


@idiom
def plotting(spot: Spot) -> Match | None:
    draws = spot.called and spot.called[0].startswith(("matplotlib.", "seaborn.", "plotly."))
    if is_loop(spot) or not (
        draws
        or call_of(
            spot,
            "plt.plot",
            "plt.savefig",
            ".savefig",
            "plt.draw",
            "plt.pause",
            "plt.figure",
            "plt.imshow",
            ".imshow",
            "plt.show",
        )
    ):
        return None
    return Match(
        "plotting",
        "Plot after training, or rarely",
        "Drawing a figure takes tens of milliseconds.",
        "Save the numbers and plot at the end, or every few thousand steps.",
        (0.9, 0.98, 1.0),
        library_calls=("tensorboard",),
        again=True,
    )


OBSERVED = re.compile(r"obs|state|pixel|stack", re.IGNORECASE)  # containers of what the agent gets


def _only_shown(statement: ast.AST, scope: ast.AST) -> bool:
    """Whether a frame is thrown away, kept in a list or written: nothing that the agent gets.

    A frame that is returned, stored in an object or computed with may be its observation.
    """
    if isinstance(statement, ast.Expr):
        call = statement.value
        into = dotted(call.func) if isinstance(call, ast.Call) else ""
        return isinstance(call, ast.Call) and not OBSERVED.search(into)
    if not isinstance(statement, ast.Assign) or not all(isinstance(t, ast.Name) for t in statement.targets):
        return False
    names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
    shown: set[int] = set()
    for one in ast.walk(scope):
        if isinstance(one, ast.Expr) and _only_shown(one, scope):
            shown |= {id(inner) for inner in ast.walk(one)}
    return all(
        id(inner) in shown
        for inner in ast.walk(scope)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load) and inner.id in names
    )


@idiom
def rendering(spot: Spot) -> Match | None:
    if is_loop(spot):
        return None
    if not call_of(spot, "cv2.imshow", "cv2.imwrite", "imageio.imwrite") and not (
        call_of(spot, ".render", ".get_images", "Image.fromarray") and _only_shown(spot.node, spot.scope)
    ):
        return None
    return Match(
        "rendering",
        "Render only what is looked at",
        "A frame is drawn at every pass.",
        "Leave rendering out of training (render_mode=None), or render a few evaluation episodes.",
        (0.85, 0.97, 1.0),
        library_calls=("render", "get_images"),
        takes="all",
    )


@idiom
def printing(spot: Spot) -> Match | None:
    call = call_of(
        spot,
        "print",
        "sys.stdout.write",
        "sys.stderr.write",
        "tqdm.write",
        ".set_postfix",
        ".set_description",
        "stdout.flush",
        "stderr.flush",
        "console.print",
    )
    if is_loop(spot) or call is None:
        return None
    if spot.called and spot.called[0].startswith(RUNS_OTHERS):
        return None  # print(asyncio.run(main()))
    return Match(
        "printing",
        "Print less often",
        "Output is written at every pass.",
        "Print every few thousand steps, or once for each rollout.",
        (0.9, 0.985, 1.0),
        takes="own",  # in print(algorithm.train()), what trains is not output
    )


@idiom
def compressing(spot: Spot) -> Match | None:
    names = (
        *("zlib.compress", "zlib.decompress", "gzip.compress", "gzip.decompress", "lzma.compress"),
        *("bz2.compress", "bz2.decompress", "blosc.pack_array", "blosc.compress", "lz4.frame.compress"),
        *("lzma.decompress", "cv2.imencode", "cv2.imdecode", "numpy.savez_compressed", "gzip.open"),
    )
    compressed = any(k.arg == "compression" for _, call in spot.calls() for k in call.keywords)
    if is_loop(spot) or not (call_of(spot, *names) or compressed):
        return None
    return Match(
        "compressing",
        "Do not compress (gzip, zlib, PNG) while training waits",
        "Compression runs on the training thread, at tens of MB/s.",
        "Keep data as uint8 or float16 arrays in memory. Write replay buffers and other large files rarely, "
        "or once at the end, uncompressed, or compress them in another process.",
        (0.75, 0.97, 1.0),
        library_calls=("",),
        takes="all",
    )


@idiom
def reading_files(spot: Spot) -> Match | None:
    names = (
        *(
            "pandas.read_csv",
            "pandas.read_parquet",
            "numpy.load",
            "numpy.loadtxt",
            "numpy.genfromtxt",
            "torch.load",
        ),
        *(
            "pickle.load",
            "joblib.load",
            ".read_text",
            ".read_bytes",
            "csv.reader",
            "csv.DictReader",
            "load_results",
        ),
        *(
            "os.listdir",
            "glob.glob",
            ".glob",
            ".rglob",
            "os.walk",
            "os.scandir",
            "yaml.safe_load",
            "h5py.File",
            "from_xml_path",
            "loadURDF",
            "loadMJCF",
            "read_gml",
            "read_graphml",
        ),
    )
    reads = any(READ.search(name) for name in _called_by_name(spot))
    if is_loop(spot) or not (call_of(spot, *names) or reads or _opens_to_read(spot)):
        return None
    return Match(
        "reading_files",
        "Read the file once and keep what it says",
        "Files are read and parsed again inside the loop.",
        "Read them before training (or in the constructor) and keep the arrays; read only what was added, or "
        "keep the numbers in memory as they come.",
        (0.8, 0.97, 1.0),
        library_calls=("load", "read", "pandas", "csv"),
        takes="all",
    )


def _called_by_name(spot: Spot) -> list[str]:
    """Library functions that were sampled there and that the source calls by the same name."""
    written = {name.rpartition(".")[2] for name, _ in spot.calls()}
    return [name for name in spot.called[:3] if name.rpartition(".")[2] in written]


def _opens_to_read(spot: Spot) -> bool:
    for name, call in spot.calls():
        if name == "open" or name.endswith("Path().open"):
            modes = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
            text = modes[0].value if modes and isinstance(modes[0], ast.Constant) else "r"
            return isinstance(text, str) and not set(text) & set("wax+")
    return False


@idiom
def writing_files(spot: Spot) -> Match | None:
    names = (
        "torch.save",
        "numpy.save",
        "numpy.savez",
        "pickle.dump",
        ".to_csv",
        ".writerow",
        ".save",
        "joblib.dump",
        "open",
        "os.fsync",
        "h5py.File",
        ".commit",
        ".execute",
        ".to_parquet",
        ".save_hdf5",
        ".save_replay_buffer",
        ".save_checkpoint",
        ".write_text",
        ".write_bytes",
    )
    saves = any(
        SAVED.search(name) and not name.startswith(("asyncio.", "socket.", "multiprocessing."))
        for name in _called_by_name(spot)
    )
    if is_loop(spot) or not (call_of(spot, *names) or saves or _writes_text(spot)):
        return None
    if any(_logs(name, call) for name, call in spot.calls()):
        return None  # more than its files: `metrics_each_step`
    return Match(
        "writing_files",
        "Write files less often",
        "Files are opened, serialised or flushed inside the loop, and training waits for it.",
        "Save every few thousand steps, keep the file open, buffer rows in memory, and write only what "
        "changed: the small policy often, a replay buffer rarely or once at the end.",
        (0.8, 0.98, 1.0),
        library_calls=("serialization", "save", "dump", "write", "h5py"),
    )


def _writes_text(spot: Spot) -> bool:
    """`file.write(...)`: of an open file, or of text."""
    for name, call in spot.calls():
        owner, _, method = name.rpartition(".")
        text = any(
            isinstance(n, ast.JoinedStr) or (isinstance(n, ast.Constant) and isinstance(n.value, str))
            for argument in call.args
            for n in ast.walk(argument)
        )
        if method == "write" and owner and not is_stream(spot, owner):
            return "open" in spot.names.of(owner) or text
    return False


@idiom
def metrics_each_step(spot: Spot) -> Match | None:
    names = (
        *(".add_scalar", ".add_scalars", ".add_histogram", ".add_image", ".add_figure", ".add_text"),
        *("wandb.log", ".log_metric", ".log_metrics", ".log_dict", "mlflow.log_metric", ".add_video"),
    )
    if is_loop(spot) or not (call_of(spot, *names) or any(_logs(name, call) for name, call in spot.calls())):
        return None
    return Match(
        "metrics_each_step",
        "Log metrics less often",
        "A metric is converted and written at every pass.",
        "Log every 100 updates or once for each rollout; keep sums as tensors and read them once.",
        (0.85, 0.985, 1.0),
        walks_memory=True,
        library_calls=("tensorboard", "logger"),
        waits=True,
        waits_for_own=True,
    )


def _logs(name: str, call: ast.Call) -> bool:
    """`logger.info(...)`, `self.log("loss", ...)`; not `probs.log()`, `info.record(x)` or `math.log(x)`."""
    owner, _, method = name.rpartition(".")
    if method in ("dump", "dumpkvs", "dump_tabular", "flush"):  # of all metrics since the last one
        return "log" in owner.rpartition(".")[2].lower() or "writer" in owner.rpartition(".")[2].lower()
    if method not in ("log", "info", "debug", "record", "warning", "record_mean") or not call.args:
        return False
    return "log" in owner.rpartition(".")[2].lower() or is_text(call.args[0])


@idiom
def checks_in_the_loop(spot: Spot) -> Match | None:
    """Assertions and tests for NaN that cost more than what they check."""
    if is_loop(spot):
        return None
    checks = (
        "torch.isnan",
        "torch.isfinite",
        "torch.isinf",
        "numpy.isnan",
        "numpy.isfinite",
        "numpy.allclose",
    )
    more = (
        "torch.allclose",
        "check_env",
        "check_env_specs",
        ".contains",
        "numpy.testing.assert_allclose",
        "numpy.array_equal",
    )
    if not isinstance(spot.node, ast.Assert) and not (
        call_of(spot, *checks, *more) and _only_tests(spot.node)
    ):
        return None
    return Match(
        "checks_in_the_loop",
        "Check values rarely, or only while debugging",
        "The check reads all values at every pass.",
        "Run it every few hundred passes or behind a debug flag; `python -O` leaves assertions out.",
        (0.8, 0.97, 1.0),
        takes="all",
        library_calls=("isnan", "isfinite", "contains", "allclose", "check"),
    )


def _only_tests(node: ast.AST) -> bool:
    """The head of an `if`, or a statement that keeps no value."""
    return isinstance(node, ast.Expr)


@idiom
def formatting_tensors(spot: Spot) -> Match | None:
    if is_loop(spot) or not any(
        "torch._tensor_str" in name or name.endswith("arrayprint.array2string") for name in spot.called[:2]
    ):
        return None
    return Match(
        "formatting_tensors",
        "Do not format tensors as text in the loop",
        "Printing or formatting a tensor or array takes hundreds of microseconds, shown or not.",
        "Format plain numbers (`.item()`), and only when the line is printed: logger.debug('%s', x) formats "
        "only if the level is on.",
        (0.85, 0.98, 1.0),
        library_calls=("_tensor_str", "arrayprint"),
    )


@idiom
def reading_scalars(spot: Spot) -> Match | None:
    if is_loop(spot):
        return None
    if not call_of(spot, ".item") or (spot.called and not spot.called[0].startswith(("torch", "numpy"))):
        return None
    if _is_used(spot):
        return None  # an action, or a value that decides something: it has to be read now
    return Match(
        "reading_scalars",
        "Read scalars from tensors less often",
        "`item()` waits for the tensor and leaves torch for one number at a time.",
        "Collect tensors and read them once for each rollout, or stack them and call tolist() once.",
        (0.6, 0.92, 1.0),
    )


def _is_used(spot: Spot) -> bool:
    """Whether a name that the statement assigns is given to a function or decides about the flow."""
    if not isinstance(spot.node, ast.Assign):
        return False
    stored = {n.id for target in spot.node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    for node in ast.walk(spot.scope):
        given: list[ast.AST] = []
        if isinstance(node, ast.Call) and not _logs(dotted(node.func), node):
            last = dotted(node.func).rpartition(".")[2]
            if last not in ("append", "print", "add_scalar", "write", "extend", "update", "format"):
                given = [*node.args, *(k.value for k in node.keywords)]
        elif isinstance(node, ast.If | ast.While):
            given = [node.test]
        elif isinstance(node, ast.Subscript):
            given = [node.slice]
        if any(isinstance(n, ast.Name) and n.id in stored for value in given for n in ast.walk(value)):
            return True
    return False


@idiom
def dataframes(spot: Spot) -> Match | None:
    if is_loop(spot):
        return None
    if not call_of(
        spot, "pandas.DataFrame", "pandas.concat", "pandas.Series", ".iterrows", ".rolling", ".groupby"
    ) and not (
        any(
            isinstance(n, ast.Attribute) and n.attr in ("loc", "iloc", "at", "iat")
            for n in ast.walk(spot.node)
        )
    ):
        return None
    return Match(
        "dataframes",
        "Keep data frames out of the loop",
        "Indexing or building a DataFrame costs tens to hundreds of microseconds.",
        "Use numpy arrays or lists in the loop; make the DataFrame once at the end.",
        (0.8, 0.96, 1.0),
    )
