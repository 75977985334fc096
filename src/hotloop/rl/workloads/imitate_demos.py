"""The stage `demos` of `hotloop train imitate`: an expert drives laps in worker processes."""

from __future__ import annotations

from hotloop import progress
from hotloop._util.units import count, counted, duration
from hotloop.rl.buffers.demonstrations import DemonstrationStore
from hotloop.rl.collect.experts import CollectionResult, DrivenEpisode, collect, track_schema
from hotloop.rl.train.runs import StopRequests
from hotloop.rl.workloads.imitate_config import Imitate, StageResult
from hotloop.rl.workloads.outcome import Note
from hotloop.rl.workloads.stage_report import StageBar, StageReport, nothing_done, split


def demonstrate(config: Imitate, note: Note | None, quiet: bool) -> StageResult:
    """Let the expert drive the episodes that are not in the folder yet."""
    store = DemonstrationStore(config.demonstrations)
    kept = set(store.begin(track_schema(config.seed, {}), resume=config.resume))
    wanted = [number for number in range(config.n_episodes) if number not in kept]
    before = config.n_episodes - len(wanted)
    bar = StageBar("demos", config.n_episodes, "episodes", done=before, quiet=quiet, note=note)
    driven: list[DrivenEpisode] = []

    def on_episode(one: DrivenEpisode) -> None:
        driven.append(one)
        progress(
            env_steps=one.steps, episodes=1, episode_return=one.total_reward, episode_length=float(one.steps)
        )
        bar.update(before + len(driven))

    with StopRequests() as stop:
        try:
            collected = collect(
                store,
                wanted,
                workers=config.demonstration_workers,
                seed=config.seed,
                settings={},
                on_episode=on_episode,
                stop=lambda: stop.by is not None,
            )
        finally:
            bar.close()
    returns = [one.total_reward for one in collected.episodes]
    return StageResult(
        demonstration_report(
            collected,
            min(config.demonstration_workers, max(len(wanted), 1)),
            (f"{count(len(kept))} episodes were there already",) if kept else (),
            store,
        ),
        env_steps=sum(one.steps for one in collected.episodes),
        episodes=len(collected.episodes),
        mean_return=sum(returns) / len(returns) if returns else None,
        stopped_by=stop.by if collected.stopped else None,
        figures={"expert_laps": float(sum(one.lap_fraction >= 1.0 for one in collected.episodes))},
    )


def demonstration_report(
    collected: CollectionResult, workers: int, remarks: tuple[str, ...], store: DemonstrationStore
) -> StageReport:
    """The report of a collection; its time is split over all workers."""
    driven = collected.episodes
    steps, laps = sum(one.steps for one in driven), sum(one.lap_fraction >= 1.0 for one in driven)
    parts = {
        "simulation": sum(one.simulation_s for one in driven),
        "aggregation": sum(one.aggregation_s for one in driven),
        "disk": sum(one.disk_s for one in driven),
    }
    total_s = workers * collected.seconds
    rate = steps / collected.seconds if collected.seconds > 0 else 0.0
    said = [f"start-up of the first worker: {duration(1e9 * collected.start_up_s)}", *remarks]
    if collected.deaths:
        said.append(f"{count(collected.deaths)} workers died; their episodes were driven again")
    stored = len(store.numbers())
    said.append(f"{counted(stored, 'episode')} {'is' if stored == 1 else 'are'} in {store.folder}")
    if driven:
        summary = (
            f"{counted(len(driven), 'episode')} ({counted(laps, 'lap')}), {count(steps)} env steps in "
            f"{duration(1e9 * collected.seconds)} with {counted(workers, 'worker')} ({count(rate)} steps/s)"
        )
    else:
        summary = nothing_done("a signal" if collected.stopped else None, "episode")
        said = said[1:]  # without the start-up of workers that had nothing to do
    return StageReport(
        "demos",
        summary,
        collected.seconds,
        split(parts, total_s),
        total_s,
        f"time of {counted(workers, 'worker')}",
        tuple(said),
        float(steps),
        max((one.memory for one in driven if one.memory), key=lambda m: m.private_bytes, default=None),
    )
