"""What reads files and strings from outside, as targets that take bytes; ``python -m tests.fuzz`` drives them."""
