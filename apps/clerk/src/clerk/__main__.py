"""`python -m clerk`."""

from clerk.cli import main

if __name__ == "__main__":
    main()
