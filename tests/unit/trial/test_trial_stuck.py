"""Where a stuck worker is, read from the stacks it dumps."""

from autotune.trial.process import _innermost_frame

DUMP = """\
Thread 0x00007f09c7f946c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f09c9a2ab80 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/home/me/.venv/lib/python3.11/site-packages/loader/fetch.py", line 283 in _next
  File "/home/me/train.py", line 91 in step
  File "<frozen runpy>", line 198 in _run_module_as_main
"""


def test_the_place_is_the_main_threads_innermost_frame_outside_the_standard_library() -> None:
    assert _innermost_frame(DUMP) == "fetch.py:283 (_next)"


def test_half_a_dump_is_no_answer_yet() -> None:
    assert _innermost_frame(DUMP[:400]) == ""
    assert _innermost_frame("") == ""
