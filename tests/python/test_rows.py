"""Rows, which carry the tensors of deepreduce.jax, .keras and .flower: small tensors beside the plan's."""

import numpy as np
import pytest

import deepreduce
from deepreduce._adapters._rows import Rows
from deepreduce.exchange import Exchange, Loopback

SHAPES = (((40, 50), "float32"), ((7,), "float32"))
RANKS, STEPS = 3, 4


def gradients(step):
    """[rank][tensor]"""
    random = np.random.default_rng(step)
    return [[random.standard_normal(shape).astype(dtype) for shape, dtype in SHAPES] for _ in range(RANKS)]


def means(plan, flat=True):
    """[step][tensor]: what the ranks' rows come to."""
    rows = Rows(SHAPES, plan, 1000, flat, 0)
    states, found = np.zeros((RANKS, rows.state_size), np.uint8), []
    for step in range(STEPS):
        there = np.empty((RANKS, rows.size), np.uint8)
        for rank, tensors in enumerate(gradients(step)):
            rows.encode(tensors, there[rank], states[rank], step, rank)
        found.append([np.array(each) for each in rows.sum(list(there), step, 1 / RANKS)])
    return found


@pytest.mark.parametrize("flat", [True, False])
def test_beside_votes_small_tensors_are_votes(flat):
    for step, found in enumerate(means("signsgd", flat)):
        for i, each in enumerate(found):
            votes = sum(np.where(mine[i] >= 0, 1, -1) for mine in gradients(step))
            assert np.array_equal(each, np.where(votes >= 0, 1, -1)), (step, i)


@pytest.mark.parametrize("ranks", [6, 10, 14, 22])
def test_a_tie_of_votes_is_one_whatever_the_weight(ranks):
    """Half of the ranks say 1, in every order that a sum may round in."""
    rows, random = Rows(SHAPES, "signsgd", 1000, True, 0), np.random.default_rng(ranks)
    signs = np.array([random.permutation(np.repeat([1, -1], ranks // 2)) for _ in range(2000)], np.float32)
    there, state = np.empty((ranks, rows.size), np.uint8), np.zeros(rows.state_size, np.uint8)
    for rank in range(ranks):
        rows.encode([signs[:, rank].reshape(40, 50), np.ones(7, np.float32)], there[rank], state, 0, rank)
    found, _ = rows.sum(list(there), 0, 1 / ranks)
    assert np.array_equal(found, np.ones((40, 50))), int((found < 0).sum())


def test_beside_momentum_small_tensors_have_it():
    plan = "sparsify=topr(ratio=0.01) feedback=dgc(momentum=0.9) index=golomb value=raw"
    momentum = np.zeros(7)
    for step, found in enumerate(means(plan)):
        momentum = 0.9 * momentum + np.mean([mine[1] for mine in gradients(step)], axis=0)
        assert np.allclose(found[1], momentum, atol=1e-5), step


WEIGHTED = "sparsify=topr(ratio=0.1) feedback=residual(beta=0.5,gamma=0.5)"


def test_beside_others_small_tensors_have_the_weight_of_the_gradient():
    """In rows as in an exchange. Those of deepreduce.torch: torch_checks_memories.py."""
    rows = Rows([((10,), "float32")], WEIGHTED, 1000, True, 0)
    there, state = np.empty((1, rows.size), np.uint8), np.zeros(rows.state_size, np.uint8)
    loopback = Loopback(1)
    exchange = Exchange(np.ones(10, np.float32), WEIGHTED, loopback.transport(0), dense_below=1000)
    for step in range(3):
        rows.encode([np.ones(10, np.float32)], there[0], state, step, 0)
        exchange.start(step)
        assert loopback.run([exchange]) == [None]
        for found in (rows.sum(list(there), step)[0], exchange.out):
            assert np.array_equal(found, np.full(10, 0.5)), step


def test_beside_others_small_tensors_travel_exactly():
    for step, found in enumerate(means("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=log_quant")):
        assert np.allclose(found[1], np.mean([mine[1] for mine in gradients(step)], axis=0), atol=1e-6), step


def test_a_plan_without_frames_is_refused_by_name():
    with pytest.raises(deepreduce.Unsupported, match="deepreduce.torch and deepreduce.transform"):
        Rows(SHAPES, "powersgd", 1000, True, 0)


def test_the_plan_says_whether_tensors_are_one():
    """And whether small ones are sent as the others are: unless flat and bypass are given."""
    top, bits = "sparsify=topr(ratio=0.5) index=golomb value=raw", "index=all value=uniform_quant(bits=4)"
    parts = lambda plan, *options: [(str(part.plan), part.positions) for part in Rows(SHAPES, plan, *options, 0).parts]
    for plan, bypass, flat in ((top, 0, True), ("index=all value=half", 0, True), (bits, 1000, False), ("onebit", 1000, False)):
        assert parts(plan, None, None) == parts(plan, bypass, flat) and len(parts(plan, None, None)) == (1 if flat else 2), plan
    assert parts(bits, None, True) == parts(bits, 0, True) and parts(top, None, False) == parts(top, 1000, False)
