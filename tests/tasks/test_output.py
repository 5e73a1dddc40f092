"""Condensed news of a log file."""

from tasks.output import LogTail, readable, reason

DVC_LOG = """\
Running stage 'distill@rte-finetune':
> kdflow distill rte finetune
epoch 1: loss 0.69, accuracy 52.7
Updating lock file 'dvc.lock'

To track the changes with git, run:

\tgit add dvc.lock
"""


def test_noise_of_dvc_is_left_out(tmp_path):
    log = tmp_path / "log"
    log.write_text(DVC_LOG)
    assert LogTail(log).news(10) == ["epoch 1: loss 0.69, accuracy 52.7"]


def test_a_bar_is_told_by_its_newest_state_and_only_when_it_moved(tmp_path):
    log = tmp_path / "log"
    log.write_text("start\n" + "".join(f"\r {n}%|#  | {n}/100" for n in range(50)))
    tail = LogTail(log)
    assert tail.news(10) == ["start", " 49%|#  | 49/100"]
    with log.open("a") as file:
        file.write("\r 80%|## | 80/100")
    assert tail.news(10) == [" 80%|## | 80/100"]
    with log.open("a") as file:
        file.write("\r100%|###| 100/100\ndone\n")
    assert tail.news(10) == ["100%|###| 100/100", "done"]


def test_only_the_newest_lines(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"line {n}\n" for n in range(20)))
    assert LogTail(log).news(2) == ["line 18", "line 19"]


def test_colours_are_removed():
    assert readable("\x1b[31mred\x1b[0m\rblue") == "blue"


def test_the_reason_is_what_the_command_said(tmp_path):
    log = tmp_path / "log"
    log.write_text(DVC_LOG + "kdflow: no file train.csv\nERROR: failed to reproduce 'distill': failed to run: x\n")
    assert reason(log) == "no file train.csv"


def test_without_a_word_of_the_command_dvcs_reason_is_given(tmp_path):
    log = tmp_path / "log"
    log.write_text("ERROR: failed to reproduce 'x': missing data 'source': data\n")
    assert reason(log) == "failed to reproduce 'x': missing data 'source': data"
    log.write_text("")
    assert reason(log) == "it printed nothing"
