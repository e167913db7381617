"""The operations, a row of the table each."""
