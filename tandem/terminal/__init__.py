"""What a person at the terminal reads: results and errors of commands, the words of messages, progress."""
