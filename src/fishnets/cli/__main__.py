"""``python -m fishnets.cli``."""

from fishnets.cli import main

if __name__ == "__main__":
    main()
