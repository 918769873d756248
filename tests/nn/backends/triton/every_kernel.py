"""One small call of each kernel, value and gradients, for a memory checker; see benchmarks/sanitize.sh."""

from __future__ import annotations

import torch

from fgnn.data import ChainMAP
from fgnn.infer import solve
from fgnn.models.points.fgnn import PointFGNN
from fgnn.nn.backends.linear import linear
from fgnn.points.knn import knn
from tests.nn.backends.triton.cases import Case, worst

CASES = [
    Case(factors=67, arity=16, variables=50, n=63, m=65, terms=7, whole=True),
    Case(factors=33, arity=6, variables=50, n=20, m=33, ragged=True, towards="variable", q="own", batch=3, whole=True),
    Case(factors=23, arity=8, variables=30, n=33, m=31, q="types", terms=4, batch=3, whole=True),
    Case(factors=23, arity=8, variables=30, n=33, m=31, q="places", batch=65, whole=True),
    Case(factors=70, arity=5, variables=99, n=40, m=24, q="places", whole=True),
]


def main() -> None:
    """Print the error of each call."""
    for case in CASES:
        print(f"{worst(case, 'triton', torch.bfloat16, 'cuda'):.1e}", case)
    x, weight, bias = (torch.randn(*shape, device="cuda") for shape in ((301, 5), (33, 5), (33,)))
    x.requires_grad_()
    weight.requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        total = linear(x, weight, bias, relu=True).sum()
    total.backward()  # type: ignore[no-untyped-call]
    print("linear", bool(torch.isfinite(x.grad).all()) if x.grad is not None else None)
    index, _ = knn(torch.rand(2, 333, 3, device="cuda"), 16)
    print("knn", int(index.max()) < 333)
    network = PointFGNN(inputs=3, classes=5, k=8).to("cuda")  # the edges' network, norms and global maximum
    with torch.autocast("cuda", torch.bfloat16):
        network(torch.rand(2, 150, 3, device="cuda")).float().square().mean().backward()
    print("points", all(bool(torch.isfinite(p.grad).all()) for p in network.parameters() if p.grad is not None))
    models = ChainMAP(2, length=13, window=5).sample(37, seed=0, device="cuda")
    for method in ("exact", "max-product", "ad3"):
        print(method, float(solve(models, method).score.mean()))


if __name__ == "__main__":
    main()
