"""The network that runs max-product on a model, as JSON: the page applies its layers itself."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from fgnn.errors import InputError
from fgnn.nn import Message, VariableToFactor
from fgnn.nn.half_layer import EdgeMessages
from fgnn.pgm import GraphicalModel
from fgnn.theory import max_product_network

# The bound on the numbers in the weights of the network; they are at most about half as many.
MAX_NUMBERS = 1 << 25
# The numbers in the reply.
MAX_REPLY_NUMBERS = 2_000_000


def compiled_network(model: GraphicalModel) -> dict[str, Any]:
    """The layer, the input features and the read-out of `fgnn.theory.max_product_network` with normalised messages.

    Raises:
        InputError: The network is too large; it has a term for every entry of a table.
    """
    numbers = network_numbers(model)
    if numbers > MAX_NUMBERS:
        what = f"Expected a network of at most {MAX_NUMBERS} numbers (got up to {numbers:.3g})"
        raise InputError(f"{what}: it has a term for every entry of a table; step without the network")
    # unnormalised messages grow with every layer, tenfold on the chain, until rounding dominates
    network = max_product_network(model, 1, normalise=True)
    size = sum(p.numel() for p in network.parameters())
    if size > MAX_REPLY_NUMBERS:
        what = f"Expected a network of at most {MAX_REPLY_NUMBERS} numbers for the page (got {size})"
        raise InputError(f"{what}; step without the network")
    f, gs = network.features(model)
    groups = []
    for kind in network.kinds:
        half = network.layer.variable_to_factor[kind.name]
        back = network.layer.factor_to_variable.edge_messages[kind.name]
        assert isinstance(half, VariableToFactor)
        assert isinstance(back, EdgeMessages)
        groups.append({
            "scopes": kind.scopes.tolist(),
            "types": kind.edge_index.tolist(),
            "g": _plain(gs[kind.name][0]),
            "to_factor": _edge_messages(half.edge_messages),
            "to_variable": _edge_messages(back),
        })  # fmt: skip
    cards = model.cardinalities.tolist()
    return {"cards": cards, "f": _plain(f[0]), "groups": groups, "readout": _plain(network.readout.weight)}


def network_numbers(model: GraphicalModel) -> float:
    """An upper bound on the numbers in the weights of `max_product_network`, from the sizes of the factors alone.

    A factor of arity A with Z terms compares A·Z numbers, with six units for each pair and layer, from features of a
    variable, which hold a slot for each of its factors.
    """
    cards = model.cardinalities.tolist()
    tables, budgets = list(model.tables()), list(model.budgets())
    degree = Counter(i for scope in (*(t.scope for t in tables), *(b.scope for b in budgets)) for i in scope)
    width = max(cards) * (2 + 3 * max(degree.values(), default=1))
    terms = [(len(t.scope), t.values.size) for t in tables]
    terms += [
        (len(b.scope), sum(math.comb(len(b.scope), j) for j in range(b.at_least, b.at_most + 1))) for b in budgets
    ]
    terms += [(1, 1)] * (len(cards) - len(degree))  # a variable without a factor gets a constant one
    units = [a * z + 4 * max(cards) + 8 for a, z in terms]
    return float(sum(64 * u**2 + 64 * u * width + 32 * width**2 for u in units))


def _edge_messages(part: EdgeMessages) -> dict[str, Any]:
    """M as linear layers, each followed by ReLU, and Q as a matrix for each type of edge."""
    return {"layers": _layers(part.message), "matrices": _plain(part.matrix.weight)}


def _layers(message: Message) -> list[dict[str, Any]]:
    assert message.activation == message.final_activation == "relu"
    first = torch.cat([message.factor_weight, message.variable_weight], 1)
    layers = [(first, message.bias), *((layer.weight, layer.bias) for layer in message.tail)]
    return [
        {"weight": _plain(weight), "bias": _plain(weight.new_zeros(len(weight)) if bias is None else bias)}  # type: ignore[operator,arg-type]
        for weight, bias in layers
    ]


def _plain(x: Tensor) -> Any:
    """Nested lists, with whole numbers as integers: most weights are 0 or 1."""
    return _whole(x.detach().tolist())


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(v) for v in value]
    return int(value) if value.is_integer() and abs(value) < 1e9 else value
