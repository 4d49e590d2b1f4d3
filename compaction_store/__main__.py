"""Runs the command line as `python -m compaction_store`."""

from compaction_store.cli import main

if __name__ == "__main__":
    main()
