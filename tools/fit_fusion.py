"""Fit how a network and SMRF decide on ground together: `python -m tools.fit_fusion SCANS RUNS`.

Every scan is first labelled by the network that held out its region. The rule of a fold is fitted to the scans of the
other folds, so neither its network nor its rule has seen the scans it is scored on. Each fold's weights are written
again as ``fused.safetensors`` with the rule on their card; those of all scans get the rule fitted to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from fgnn.data.aerial import FOLDS, is_ground, read_all
from fgnn.models.points.segmenter import load_segmenter
from fgnn.points import Cloud, Segmenter
from fgnn.points.cloud import HeldCloud
from fgnn.points.ground_fusion import FEATURES, GroundFusion, block_features, fuse
from fgnn.points.ground_surface import GroundSurface, Tolerance
from fgnn.points.segment import network_votes
from fgnn.points.tiles import TileStore
from fgnn.runtime.progress import log_line
from fgnn.schema import plain
from fgnn.weights import load_weights, save_weights

# Points of each scan that a rule is fitted to, drawn with repeats: every scan weighs the same.
_DRAWN = 6000
_STEPS, _BATCH, _RATE = 400, 8192, 0.05
_SHARP = 2.0  # of the smooth count of errors
_DECAY = 1e-4
# Tried for points that the network did not label; the first of equals wins.
TOLERANCES = tuple(
    Tolerance(base, slope, edge)
    for base, slope, edge in product((0.3, 0.25, 0.2, 0.15, 0.1), (0.0, 0.25, 0.5, 1.0), (0.0, 0.05, 0.1))
)


@dataclass(frozen=True, eq=False)
class LabelledScan:
    """What a rule is fitted to: of the points that the network labelled, and the votes for all."""

    fold: int
    cloud: Cloud
    size: float  # of tiles
    classes: tuple[str, ...]
    votes: NDArray[np.float32]  # shape: (N, K), in the order of the cloud
    features: NDArray[np.float32]  # shape: (N, F), zeros where the network gave no label

    @property
    def truth(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        return is_ground(self.cloud.fields["classification"])


def label(cloud: Cloud, fold: int, segmenter: Segmenter, cache: Path) -> LabelledScan:
    """Label a scan by the network of its fold, or take what is in the file ``cache``."""
    if cache.is_file():
        votes = np.load(cache)
    else:
        votes = np.zeros((len(cloud), len(segmenter.classes)), np.float32)
        with network_votes(cloud, segmenter) as (store, found):
            votes[np.asarray(store.place)] = found
        cache.parent.mkdir(parents=True, exist_ok=True)
        np.save(cache, votes)
    features = np.zeros((len(cloud), len(FEATURES)), np.float32)
    with TileStore(HeldCloud(cloud), segmenter.size) as store:
        place = np.asarray(store.place)
        for slots, x in block_features(store, votes[place], segmenter.classes):
            features[place[slots]] = x
    return LabelledScan(fold, cloud, segmenter.size, tuple(segmenter.classes), votes, features)


def fit(scans: Iterable[LabelledScan], seed: int = 0) -> NDArray[np.float64]:
    """Weights that minimise a smooth count of errors over the labelled points, every scan weighing the same."""
    rng, draw = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    parts = []
    for scan in scans:
        truth, known = scan.truth
        points = np.flatnonzero(known & (scan.features[:, -1] > 0))
        chosen = rng.choice(points, _DRAWN)
        share = np.full(_DRAWN, len(points) / known.sum(), np.float32)  # the others follow these
        parts.append((scan.features[chosen], 2.0 * truth[chosen] - 1, share))
    x, sign, weight = (torch.from_numpy(np.concatenate(p).astype(np.float32)) for p in zip(*parts, strict=True))
    mean, spread = x.mean(0), x.std(0) + 1e-6
    mean[-1], spread[-1] = 0.0, 1.0  # the constant
    x = (x - mean) / spread
    w = torch.zeros(x.shape[1], requires_grad=True)
    optimiser = torch.optim.Adam([w], _RATE)
    for step in range(_STEPS):
        rows = torch.randint(len(x), (_BATCH,), generator=draw)
        wrong = torch.sigmoid(-_SHARP * (x[rows] @ w) * sign[rows]) * weight[rows]
        loss = wrong.mean() + _DECAY * w[:-1].square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        optimiser.param_groups[0]["lr"] = _RATE * (1 - step / _STEPS) + 1e-3
    result = (w.detach() / spread).double().numpy()
    result[-1] -= float((w.detach()[:-1] * mean[:-1] / spread[:-1]).sum())
    return np.asarray(result)


def errors(scan: LabelledScan, weights: NDArray[np.float64]) -> dict[Tolerance, float]:
    """Total error by tolerance, as `fuse` and `spread` would label the scan."""
    fused = scan.votes.copy()
    with TileStore(HeldCloud(scan.cloud), scan.size) as store:
        place = np.asarray(store.place)
        votes = fused[place]
        fuse(store, votes, scan.classes, GroundFusion(tuple(weights.tolist())))
        fused[place] = votes
    named = fused.any(1)
    ground = named & (fused.argmax(1) == scan.classes.index("ground"))
    local = scan.cloud.local()
    truth, known = scan.truth
    rest = known & ~named
    wrong, count = int((ground != truth)[known & named].sum()), int(known.sum())
    height, slope, edge = GroundSurface(local[ground]).shape(local[rest, :2])
    distance = np.abs(local[rest, 2] - height)
    return {t: (wrong + int(((distance <= t.at(slope, edge)) != truth[rest]).sum())) / count for t in TOLERANCES}


def with_rule(weights: Path, rule: GroundFusion) -> Path:
    """Write weights again with the rule on their card."""
    loaded, out = load_weights(weights), weights.with_name("fused.safetensors")
    save_weights(out, loaded.tensors, dict(loaded.card) | {"fusion": plain(rule)})
    return out


def fit_folds(scans: Mapping[str, LabelledScan]) -> dict[int, GroundFusion]:
    """The rule of each fold, and as -1 that of all scans; tolerances are chosen on the same scans as the weights."""
    folds = sorted({scan.fold for scan in scans.values()})
    weights = {fold: fit([s for s in scans.values() if s.fold != fold]) for fold in folds}
    table = {name: errors(scan, weights[scan.fold]) for name, scan in scans.items()}
    rules = {}
    for fold in [*folds, -1]:
        mean = {t: np.mean([table[n][t] for n, s in scans.items() if s.fold != fold]) for t in TOLERANCES}
        w = weights[fold] if fold >= 0 else fit(scans.values())
        best = min(mean, key=lambda t: mean[t])
        rules[fold] = GroundFusion(tuple(np.round(w, 4).tolist()), best)
        if fold >= 0:
            for name in (n for n, s in scans.items() if s.fold == fold):
                log_line(f"{name}: total error {100 * table[name][best]:.2f} %")
    return rules


def main(
    scans: Annotated[Path, typer.Argument(help="The folder with isprs_filtertest_ground.npz, .laz files and aerial/.")],
    runs: Annotated[Path, typer.Argument(help="The folder of tools.train_aerial, with fold-0 to fold-4 and all.")],
    cache: Annotated[Path | None, typer.Option(help="Keeps the networks' votes; by default the folder votes.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only these scans.")] = None,
) -> None:
    """Fit the rule that decides on ground, once without each fold and once to all scans."""
    clouds = read_all(scans)
    found = {}
    for fold, names in enumerate(FOLDS):
        segmenter = replace(load_segmenter(runs / f"fold-{fold}" / "last.safetensors"), fusion=None)
        for name in names:
            if not only or name in only:
                file = (cache or runs / "votes") / f"{name}.npy"
                found[name] = label(clouds[name], fold, segmenter, file)
                log_line(f"{name}: {len(clouds[name]):,} points, labelled by fold {fold}")
    for fold, rule in fit_folds(found).items():
        weights = runs / (f"fold-{fold}" if fold >= 0 else "all") / "last.safetensors"
        values = ", ".join(f"{n} {w:g}" for n, w in zip(FEATURES, rule.weights, strict=True))
        log_line(f"{with_rule(weights, rule)}: {values}; {rule.tolerance}")


if __name__ == "__main__":
    typer.run(main)
