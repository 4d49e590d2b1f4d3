"""`python -m compaction_store` is the command line."""

from compaction_store.cli import main

if __name__ == "__main__":
    main()
