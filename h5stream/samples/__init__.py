"""What a sample is: which rows of which fields it takes, and where they land in it. Pure: arrays in, arrays out."""
