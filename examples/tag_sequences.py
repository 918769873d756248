"""Tag sequences with a chain CRF on top of a network, beside the network alone.

    python examples/tag_sequences.py

Sentences are drawn from a hidden Markov model over BIO tags of three kinds of span: B-k begins a span of kind k, I-k
continues it, O is outside. I-k may only follow B-k or I-k. docs/problems/learning.md explains the model.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn

import fgnn

KINDS, LENGTH, WORDS = 3, 24, 200
TAGS = 1 + 2 * KINDS  # O, then B-k and I-k


def transitions() -> Tensor:
    """p(next tag | tag): spans have two to three words and are followed by O twice as often as by another span."""
    p = torch.zeros(TAGS, TAGS, dtype=torch.float64)
    p[0, 0], p[0, 1::2] = 0.6, 0.4 / KINDS
    for k in range(KINDS):
        for tag in (1 + 2 * k, 2 + 2 * k):
            p[tag, 2 + 2 * k], p[tag, 0], p[tag, 1::2] = 0.55, 0.3, 0.15 / KINDS
    return p


def sentences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Words and tags, both (count, LENGTH). A third of the words say little about their tag."""
    make = torch.Generator().manual_seed(0)  # the language is the same in every set
    sharpness = torch.where(torch.rand(WORDS, generator=make) < 1 / 3, 0.3, 2.0)
    words_of = (sharpness * torch.randn(TAGS, WORDS, generator=make)).softmax(1)
    step, tags = transitions(), []
    tag = torch.zeros(count, dtype=torch.int64)
    for _ in range(LENGTH):
        tag = torch.multinomial(step[tag], 1, generator=generator).squeeze(1)
        tags.append(tag)
    y = torch.stack(tags, 1)
    words = torch.multinomial(words_of[y.flatten()], 1, generator=generator).view_as(y)
    return words, y


class Network(nn.Module):
    """Scores of the tags of every word, from a window of three words."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.window = nn.Conv1d(width, 2 * width, kernel_size=3, padding=1)
        self.score = nn.Linear(2 * width, TAGS)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.window(self.embed(words).transpose(1, 2)).transpose(1, 2)
        return self.score(hidden.relu())  # type: ignore[no-any-return]


def bio_chain() -> fgnn.GraphicalModel:
    """The chain of tags, in which I-k follows B-k or I-k alone."""
    allowed = np.full((TAGS, TAGS), -np.inf)
    allowed[transitions().numpy() > 0] = 0.0
    model = fgnn.GraphicalModel([TAGS] * LENGTH)
    model.add_tables([(i, i + 1) for i in range(LENGTH - 1)], np.stack([allowed] * (LENGTH - 1)))
    start = np.where(np.isinf(allowed[0]), -np.inf, 0.0)
    model.add_unary(0, start)
    return model


def train(words: Tensor, tags: Tensor, crf: fgnn.nn.CRF | None, epochs: int, seed: int) -> Network:
    """Maximise the likelihood of the tags: under the CRF, or word by word without one."""
    torch.manual_seed(seed)
    network = Network()
    parameters = [*network.parameters(), *(crf.parameters() if crf else ())]
    optimiser = torch.optim.Adam(parameters, lr=5e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(words)).split(64):
            scores = network(words[rows])
            if crf is None:
                loss = nn.functional.cross_entropy(scores.flatten(0, 1), tags[rows].flatten())
            else:
                loss = -crf.log_prob(tags[rows], scores).mean() / LENGTH
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return network


def spans(tags: list[int]) -> set[tuple[int, int, int]]:
    """(kind, first, last) of every span."""
    found, begin = set(), -1
    for at, tag in enumerate([*tags, 0]):
        inside = begin >= 0 and tag == tags[begin] + 1
        if begin >= 0 and not inside:
            found.add((tags[begin], begin, at - 1))
            begin = -1
        if tag % 2 == 1:
            begin = at
    return found


def report(name: str, predicted: Tensor, tags: Tensor) -> float:
    """Print accuracy, span F1 and the number of sentences that break the rule; returns F1."""
    ours, true = ([spans(row) for row in t.tolist()] for t in (predicted, tags))
    hits = sum(len(a & b) for a, b in zip(ours, true, strict=True))
    f1 = 200 * hits / (sum(map(len, ours)) + sum(map(len, true)))
    broken = (transitions()[predicted[:, :-1], predicted[:, 1:]] == 0).any(1).sum()
    accuracy = 100 * (predicted == tags).double().mean()
    print(f"{name:14s} tags {accuracy:.2f} %  spans F1 {f1:.2f} %  sentences that break the rule {int(broken)}")
    return f1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=1000, help="for training; as many are held out")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(options.seed + 1)
    words, tags = sentences(options.sentences, generator)
    new_words, new_tags = sentences(options.sentences, generator)
    alone = train(words, tags, None, options.epochs, options.seed)
    crf = fgnn.nn.CRF(bio_chain(), learn="shared")
    below = train(words, tags, crf, options.epochs, options.seed)
    with torch.no_grad():
        print(f"{options.sentences} sentences held out, seed {options.seed}")
        report("network", alone(new_words).argmax(2), new_tags)
        report("network + CRF", crf.map(below(new_words), method="exact").assignment, new_tags)


if __name__ == "__main__":
    main()
