"""Start-up of every Python under `autotune dryrun`: lets the observer watch, then runs the user's own sitecustomize.

Python imports one module of this name. Ours comes first on PYTHONPATH, so it must find the next one and run it as
Python would have. Must never raise into the program and imports nothing that Python has not loaded anyway.
"""

import sys


def _watch():
    try:
        import autotune_dryrun_observer

        autotune_dryrun_observer.watch()
    except Exception as error:  # a program runs unobserved rather than not at all
        sys.stderr.write("autotune dryrun: not observed: %r\n" % (error,))


def _run_the_next():
    """Import the sitecustomize that stands behind this one, if there is one, in its place in sys.modules."""
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    kept, ours = sys.path[:], sys.modules.pop(__name__, None)
    sys.path[:] = [folder for folder in kept if os.path.abspath(folder or ".") != here]
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        # what it did to the path stays; our own folder goes, except for children, who read PYTHONPATH
        if ours is not None:
            sys.modules.setdefault(__name__, ours)


_watch()
_run_the_next()
