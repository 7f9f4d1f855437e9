"""The compiled parts under AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer and valgrind."""
