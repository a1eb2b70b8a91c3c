"""An engine carries an exchange to the clients and returns the mean of their messages."""
