"""linger ops."""

from tests.support.command import run


def test_formulas_are_listed(tmp_path):
    done = run("ops", cwd=tmp_path)
    assert done.returncode == 0
    assert "Conv2dInt" in done.stdout
    assert "w is [out, in]" in done.stdout


def test_help_names_every_command(tmp_path):
    from linger.cli import COMMANDS

    done = run("--help", cwd=tmp_path)
    assert all(name in done.stdout for name in COMMANDS)


def test_version(tmp_path):
    import linger

    done = run("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"linger {linger.__version__}\n", "")
