"""The papers' missingness mechanisms word by word, one sample at a time.

Written from the papers' statements with loops, not from the library's code.
"""

import itertools
import math


def mar_1_pattern(variances, order, threshold=1.1, decrement=0.15):
    """FALSE-VFL Algorithm 1 for one sample and one order of visits; True where missing."""
    unvisited = list(order)
    chosen = unvisited.pop(0)
    observed = {chosen}
    while unvisited:
        if variances[chosen] > threshold:
            break
        threshold = threshold - decrement
        chosen = unvisited.pop(0)
        observed.add(chosen)
    return tuple(k not in observed for k in range(len(variances)))


def mar_2_pattern(variances, order, threshold=0.5, budget=0.7, decrement=0.15):
    """FALSE-VFL Algorithm 2 for one sample and one order of visits; True where missing."""
    unvisited = list(order)
    chosen = unvisited.pop(0)
    observed = {chosen}
    while unvisited:
        variance = variances[chosen]
        if variance > threshold:
            budget = budget - (variance - threshold)
        if budget <= 0:
            break
        threshold = threshold - decrement
        chosen = unvisited.pop(0)
        observed.add(chosen)
    return tuple(k not in observed for k in range(len(variances)))


def pattern_probabilities(algorithm, variances, **settings):
    """Probability of each missingness pattern, over all orders of visits alike."""
    orders = list(itertools.permutations(range(len(variances))))
    chances = {}
    for order in orders:
        pattern = algorithm(variances, order, **settings)
        chances[pattern] = chances.get(pattern, 0.0) + 1.0 / len(orders)
    return chances


def mnar_probability(block, p):
    """FALSE-VFL Section 5.1: chance that one sample's block is dropped."""
    mean = sum(block) / len(block)
    return p if mean < 0 else 1.0 - p


def _sigmoid(value):
    return 1.0 / (1.0 + math.exp(-value))


def _copula_predictor(blocks, delta_mis):
    eta = 1.0
    for j, block in enumerate(blocks, start=1):
        if j in delta_mis:
            continue
        for a, value in enumerate(block, start=1):
            eta += (-1) ** j * (1.0 / (j * a)) * value
    return eta


def mar_simple_probability(blocks, delta_mis):
    """Copula paper Section 5.2, simple case, for a party in delta_mis (numbers from 1)."""
    return _sigmoid(_copula_predictor(blocks, delta_mis))


def mar_complex_pattern_probability(blocks, label, delta_mis, pattern):
    """Copula paper Section 5.2, complex case: joint probability of a pattern of all parties."""
    chance = 1.0
    for k in range(1, len(blocks) + 1):
        gone = pattern[k - 1]
        if k not in delta_mis:
            chance *= 0.0 if gone else 1.0
            continue
        logit = _copula_predictor(blocks, delta_mis) - label
        for earlier in delta_mis:
            if earlier < k:
                logit += (-1) ** earlier * (1 if pattern[earlier - 1] else 0)
        chance *= _sigmoid(logit) if gone else 1.0 - _sigmoid(logit)
    return chance
