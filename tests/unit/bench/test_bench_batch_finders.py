"""The finders we compare with search as their libraries do."""

import pytest

from bench.batch_finders import FINDERS, Found, find_by_accelerate, find_by_bisection, find_by_power


def asked(find, limit, most):
    sizes: list[int] = []

    def fits(batch):
        sizes.append(batch)
        return batch <= limit

    return find(fits, most), sizes


def test_halving_goes_down_from_the_top_until_one_fits():
    found, sizes = asked(FINDERS["halving"], 5, 16)
    assert sizes == [16, 8, 4]
    assert found == Found(4, 3)


def test_accelerate_goes_down_by_its_own_factor():
    found, sizes = asked(find_by_accelerate, 12, 16)
    assert sizes == [16, 14, 12]
    assert found == Found(12, 3)


def test_power_doubles_until_one_fails_and_keeps_the_last_that_fitted():
    found, sizes = asked(find_by_power, 11, 64)
    assert sizes == [2, 4, 8, 16]
    assert found == Found(8, 4)


def test_power_halves_while_none_has_fitted_and_then_doubles_again():
    assert asked(find_by_power, 1, 64) == (Found(1, 3), [2, 1, 2])


def test_bisection_closes_in_on_the_largest():
    found, sizes = asked(find_by_bisection, 11, 64)
    assert sizes == [2, 4, 8, 16, 12, 10, 11]
    assert found == Found(11, 7)


@pytest.mark.parametrize("name", list(FINDERS))
def test_none_that_fits_is_said_so_after_a_batch_of_one(name):
    found, sizes = asked(FINDERS[name], 0, 8)
    assert found.batch is None
    assert found.trials == len(sizes) <= 8


@pytest.mark.parametrize("name", list(FINDERS))
@pytest.mark.parametrize("most", [1, 7, 32])
@pytest.mark.parametrize("limit", [1, 5, 40])
def test_what_is_found_fits_and_is_within_the_limit(name, most, limit):
    found, _ = asked(FINDERS[name], limit, most)
    assert found.batch is not None
    assert 1 <= found.batch <= min(limit, most)
    if name == "bisection":
        assert found.batch == min(limit, most)
