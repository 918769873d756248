"""Belief propagation on the GPU: one program decodes a shot from start to end, then takes the next from a queue.

Nothing returns to the host before all shots are done. The messages of a program stay in a scratch row that is small
enough for the caches: edges are stored by place within a check, so that neighbouring checks are read together.
"""

# mypy: ignore-errors
# (Triton kernel arguments have no annotations)
from __future__ import annotations

import triton
import triton.language as tl

CERTAIN = tl.constexpr(1e4)


@triton.jit
def _phi(x):
    """-log tanh(x / 2), its own inverse."""
    e = tl.exp(-tl.maximum(x, 1e-7))
    return tl.log(1 + e) - tl.log(tl.maximum(1 - e, 1e-30))


@triton.jit
def _message(off, check_bits, post, r):
    """The bits of one edge of each check, which of them exist, their posteriors and the messages towards the checks."""
    v = tl.load(check_bits + off)
    valid = v >= 0
    p = tl.load(post + v, mask=valid, other=0.0)
    return valid, p, p - tl.load(r + off, mask=valid, other=0.0).to(tl.float32)


@triton.jit
def _check_pass(
    check_bits, post, r, syn, scale, offset, M, MP, D, SUM: tl.constexpr, BC: tl.constexpr, U: tl.constexpr
):
    """Update all messages from checks; return whether the posteriors violate one.

    A thread owns a check and walks along its edges, so that nothing is exchanged between threads. Loops are unrolled
    by U: the loads of several edges are then under way together.
    """
    bad = 0
    for start in range(0, M, BC):
        c = start + tl.arange(0, BC)
        parity = tl.load(syn + c, mask=c < M, other=0).to(tl.int32)
        negative = parity
        least = tl.full((BC,), CERTAIN, tl.float32)
        second = tl.full((BC,), CERTAIN, tl.float32)
        total = tl.zeros((BC,), tl.float32)
        for k in range(0, D, U):
            for u in tl.static_range(U):
                valid, p, q = _message((k + u) * MP + c, check_bits, post, r)
                parity += (valid & (p < 0)).to(tl.int32)
                negative += (valid & (q < 0)).to(tl.int32)
                if SUM:
                    total += tl.where(valid, _phi(tl.abs(q)), 0.0)
                else:
                    size = tl.where(valid, tl.abs(q), CERTAIN)
                    second = tl.minimum(second, tl.maximum(least, size))
                    least = tl.minimum(least, size)
        bad = tl.maximum(bad, tl.max(tl.where(c < M, parity & 1, 0), 0))
        for k in range(0, D, U):
            for u in tl.static_range(U):
                off = (k + u) * MP + c
                valid, p, q = _message(off, check_bits, post, r)
                if SUM:
                    size = _phi(tl.maximum(total - _phi(tl.abs(q)), 0.0))
                else:
                    size = tl.where(tl.abs(q) == least, second, least)
                    size = scale * tl.maximum(size - offset, 0.0)
                flip = (negative + (q < 0).to(tl.int32)) & 1
                tl.store(r + off, tl.where(flip == 1, -size, size).to(r.dtype.element_ty), mask=valid)
    return bad


@triton.jit
def _bit_pass(bit_slots, llr, gamma, gamma_step, post, r, N, NP, DV: tl.constexpr, BN: tl.constexpr):
    """Update the posterior of every bit; a thread owns a bit."""
    for start in range(0, N, BN):
        v = start + tl.arange(0, BN)
        live = v < N
        prior = tl.load(llr + v, mask=live, other=0.0)
        g = tl.load(gamma + v * gamma_step, mask=live, other=0.0)
        total = prior + g * (tl.load(post + v, mask=live, other=0.0) - prior)
        for k in tl.static_range(DV):
            slot = tl.load(bit_slots + k * NP + v)
            total += tl.load(r + slot, mask=slot >= 0, other=0.0).to(tl.float32)
        tl.store(post + v, total, mask=live)


@triton.jit
def _start_leg(check_bits, llr, post, r, MP, D, FIRST: tl.constexpr, BC: tl.constexpr, U: tl.constexpr):
    """Set the messages so that every check hears the prior, whatever the posteriors are."""
    for start in range(0, MP, BC):
        c = start + tl.arange(0, BC)
        for k in range(D):
            off = k * MP + c
            v = tl.load(check_bits + off)
            valid = v >= 0
            message = tl.zeros((BC,), tl.float32)
            if not FIRST:
                message = tl.load(post + v, mask=valid, other=0.0) - tl.load(llr + v, mask=valid, other=0.0)
            tl.store(r + off, message.to(r.dtype.element_ty), mask=valid)


@triton.jit
def decode_shots(
    check_bits, bit_slots, llrs, llr_step, gammas, gamma_row, gamma_step, lengths, legs, syndromes, words, posteriors,
    iterations, converged, all_messages, all_posts, queue, shots, N, NP, M, MP, D, scale, offset, solutions,
    SUM: tl.constexpr, KEEP: tl.constexpr, DV: tl.constexpr, BC: tl.constexpr, BN: tl.constexpr, U: tl.constexpr,
):  # fmt: skip
    """Decode shots until the queue is empty; `Schedule` explains legs, memory and solutions.

    check_bits (D, MP) holds the bit at each place of each check, bit_slots (DV, NP) the places of each bit, or -1.
    """
    slot = tl.program_id(0).to(tl.int64)
    r = all_messages + slot * D * MP
    post = all_posts + slot * NP
    shot = tl.atomic_add(queue, 1).to(tl.int64)
    while shot < shots:
        llr = llrs + shot * llr_step
        syn = syndromes + shot * M
        for start in range(0, N, BN):
            v = start + tl.arange(0, BN)
            tl.store(post + v, tl.load(llr + v, mask=v < N, other=0.0), mask=v < N)
        tl.debug_barrier()
        _start_leg(check_bits, llr, post, r, MP, D, True, BC, U)
        tl.debug_barrier()
        leg, step, total, found, running = 0, 0, 0, 0, 1
        best = 0.0
        half = 1.0
        while running == 1:
            half = tl.where(step == 0, 0.5, half * 0.5)
            factor = tl.where(scale > 0, scale, 1 - half)
            bad = _check_pass(check_bits, post, r, syn, factor, offset, M, MP, D, SUM, BC, U)
            tl.debug_barrier()
            good = (bad == 0) & (step > 0)
            if good | (step >= tl.load(lengths + leg)):
                weight = 0.0
                for start in range(0, N, BN):
                    v = start + tl.arange(0, BN)
                    p = tl.load(post + v, mask=v < N, other=0.0)
                    weight += tl.sum(tl.where(p < 0, tl.load(llr + v, mask=v < N, other=0.0), 0.0), 0)
                last = (leg + 1 >= legs) | (found + good.to(tl.int32) >= solutions)
                # the first word that satisfies the checks, a better one, or at the end what there is
                if (good & ((found == 0) | (weight < best))) | (last & (found == 0)):
                    best = weight
                    for start in range(0, N, BN):
                        v = start + tl.arange(0, BN)
                        p = tl.load(post + v, mask=v < N, other=0.0)
                        tl.store(words + shot * N + v, (p < 0).to(tl.uint8), mask=v < N)
                found += good.to(tl.int32)
                if last:
                    running = 0
                else:
                    leg += 1
                    step = 0
                    _start_leg(check_bits, llr, post, r, MP, D, False, BC, U)
            else:
                _bit_pass(bit_slots, llr, gammas + leg * gamma_row, gamma_step, post, r, N, NP, DV, BN)
                step += 1
                total += 1
            tl.debug_barrier()
        if KEEP:
            for start in range(0, N, BN):
                v = start + tl.arange(0, BN)
                tl.store(posteriors + shot * N + v, tl.load(post + v, mask=v < N, other=0.0), mask=v < N)
        tl.store(iterations + shot, total)
        tl.store(converged + shot, (found > 0).to(tl.uint8))
        tl.debug_barrier()
        shot = tl.atomic_add(queue, 1).to(tl.int64)
