"""`python -m rfdetr_train`."""

from rfdetr_train.cli import main

if __name__ == "__main__":
    main()
