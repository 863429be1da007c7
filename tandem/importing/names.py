"""Words in the names of columns that say what a column holds."""

# Columns whose name contains one of these words come first, in the order of the words.
SEQUENCE_NAMES = "sequence seq series trial recording record session clip track episode case run sample id".split()
STEP_NAMES = "step frame tick t time timestamp stamp datetime date elapsed index".split()
LABEL_NAMES = "label class category event activity gesture target type kind outcome classification".split()
# Of labels in each row of a recording.
RECORDED_NAMES = "activity label class category event gesture action behavior behaviour exercise posture".split()
RECORDED_NAMES += ["stage", "state"]
GROUP_NAMES = "group person subject participant user patient speaker writer actor signer player".split()
GROUP_NAMES += "animal device sensor machine engine unit site".split()
GROUP_NAMES = [*GROUP_NAMES, *(f"{name}s" for name in GROUP_NAMES), "day"]
CALENDAR_NAMES = "date period month quarter year week weekday day hour season".split()
COUNTING_NAMES = "row index id number nr no seq".split()
