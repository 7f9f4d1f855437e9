"""Short deadlines that lost ranks alone can miss: on a busy machine those that are there may be later than these."""


def count_from(meeting, deadline_s, begins):
    """Let ``meeting`` give a rank up ``deadline_s`` after ``begins()`` holds, whatever comes until then."""
    meeting.deadline_s, comes = deadline_s, meeting._comes

    def waited(wait, *others):
        while not begins() and not wait(0.001):
            pass
        return comes(wait, *others)

    meeting._comes = waited
