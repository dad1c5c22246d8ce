"""How long one waits: for help, for a refusal, and for the first step of a run.

    python scripts/bench_startup.py --reference-python PATH --rounds 5

A command is a fresh process; they take turns. What a refusal takes is importing the command line, composing and
checking a config; beside it `import rfdetr` of the reference package, which its configs cannot be checked without.
"""

import subprocess
import sys
import tempfile
import time

from turns import command_line, quartiles, show, write_report

CHECK = "from rfdetr_train.cli import compose_config; compose_config('train', ['model=nano'])"
FIRST_STEP = ("model=tiny", "logger.progress=plain", "trainer.log_every_steps=1", "data.num_workers=0")
SIGN_OF_A_STEP = "loss "
"""In the plain lines of a run's progress."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--reference-python")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    run = [sys.executable, "-m", "rfdetr_train"]
    with tempfile.TemporaryDirectory() as folder:
        first_step = [*run, *FIRST_STEP, f"run_dir={folder}/runs", f"data.root={folder}/data"]
        commands = {
            "--help": ([*run, "--help"], None),
            "import and config check": ([sys.executable, "-c", CHECK], None),
            "first step of tiny": (first_step, SIGN_OF_A_STEP),
        }
        if options.reference_python:
            commands["import rfdetr"] = ([options.reference_python, "-W", "ignore", "-c", "import rfdetr"], None)
        for command, sign in commands.values():
            wait(command, sign)  # files enter the system's cache, and the demo set is written
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(options.rounds):
            for name, (command, sign) in commands.items():
                seconds[name].append(wait(command, sign))
    rows = [{"command": name, "s": quartiles(times)} for name, times in seconds.items()]
    show("seconds", ["command", "s"], rows)
    write_report(options, rows)


def wait(command: list[str], sign: str | None) -> float:
    """Seconds until the command ends or, if there is a sign, until a line shows it."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if sign is not None and sign in line:
                process.kill()
                return time.perf_counter() - started
    if process.returncode or sign is not None:
        raise SystemExit(f"{' '.join(command)}: failed\n{''.join(lines)}")
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
