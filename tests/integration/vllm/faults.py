def register():
    pass
FAULTS = {}
