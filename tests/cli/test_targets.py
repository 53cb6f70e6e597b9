"""linger targets."""

from tests.support.command import run


def test_chips_and_their_limits_are_a_table(tmp_path):
    done = run("targets", cwd=tmp_path)
    assert done.returncode == 0
    rows = {
        cells[1].strip(): cells[2].strip() for line in done.stdout.splitlines() if len(cells := line.split("│")) > 3
    }
    assert rows["memory: tensor_bytes"] == "655,360"  # venus is the first chip
    assert rows["windows: strides"] == "1, 2, 4"


def test_one_chip_whole(tmp_path):
    done = run("targets", "venus", cwd=tmp_path)
    assert done.returncode == 0
    rows = {
        cells[2].strip(): cells[3].strip() for line in done.stdout.splitlines() if len(cells := line.split("│")) > 4
    }
    assert "recurrent_sizes" not in rows
    assert rows["scratch_written"] == "LayerNormInt: 8, LSTMInt: 40"
    assert rows["turned_orders"] == "0132: 89,600, 0213: 69,696, 102: 90,000"
    assert "not tried" in done.stdout
