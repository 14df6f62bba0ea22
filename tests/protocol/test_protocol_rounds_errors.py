"""Several parties fail in a step: one error tells of all, and no traceback is logged."""

import logging

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Party, Strategy, simulate, step
from flwr_vertical.errors import DataError, PartyError


class FailingParty(Party):
    @step
    def fail(self, how: str) -> dict[str, float]:
        if how == "data" and self.name != "p0":
            raise DataError(f"party {self.name!r}, column 'x' holds nothing of use")
        if how == "bug":
            return {"x": [][1]}
        return {"x": 1.0}


class Failing(Strategy):
    """Fail."""

    how: str = "data"
    name = "failing"
    party = FailingParty

    def run(self, federation, alignment, result, progress):
        federation.call("fail", {"how": self.how})


def tables(n):
    return {f"p{i}": pd.DataFrame({"x": np.arange(5.0)}) for i in range(n)}


@pytest.mark.parametrize(("n", "others"), [(2, 0), (4, 2), (8, 6)])
def test_one_error_tells_of_all_parties(caplog, n, others):
    caplog.set_level(logging.INFO)
    with pytest.raises(PartyError) as caught:
        simulate(Failing(), tables(n), progress=False)
    assert (caught.value.party, caught.value.step) == ("p1", "fail")
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("DataError: party 'p1', column 'x' holds nothing of use")
    told = [line for line in lines if line.startswith("  party")]
    assert len(told) == min(others, 4)
    assert ("and 2 more parties" in lines[-1]) == (others == 6)
    assert not any(record.exc_info for record in caplog.records)


def test_the_traceback_of_a_mistake_in_a_step_is_logged_once(caplog):
    with pytest.raises(PartyError, match="IndexError"):
        simulate(Failing(how="bug"), tables(3), progress=False)
    assert len([record for record in caplog.records if record.exc_info]) == 1
