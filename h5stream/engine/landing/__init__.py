"""The ways in which rows land in slots, between which `h5stream.engine.reader.way_of` chooses for each part."""
