"""What carries an exchange to the clients and brings back the mean of their messages."""
