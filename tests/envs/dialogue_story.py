"""Conversations in LoCoMo's form, in words of our own."""

import copy
import json

TALK = {
    "sample_id": "own-1",
    "conversation": {
        "speaker_a": "Nora",
        "speaker_b": "Otto",
        "session_2_date_time": "9:10 am on 4 June, 2024",
        "session_2": [
            {"speaker": "Otto", "dia_id": "D2:1", "text": "My boat is called Swift."},
            {
                "speaker": "Nora",
                "dia_id": "D2:02",
                "text": "",
                "img_url": ["none"],
                "blip_caption": "a red kite over a beach",
            },
        ],
        "session_1_date_time": "8:05 pm on 2 May, 2024",
        "session_1": [
            {"speaker": "Nora", "dia_id": "D1:1", "text": "I bought a lamp today."},
            {"speaker": "Otto", "dia_id": "D1:2", "text": "Nice! I went to the sea."},
        ],
        "session_3_date_time": "a day without talk",
    },
    "qa": [
        {
            "question": "When did Nora buy a lamp?",
            "answer": "2 May 2024",
            "evidence": ["D1:1"],
            "category": 2,
        },
        {
            "question": "What is Otto's boat called?",
            "answer": "Swift",
            "evidence": ["D2:1"],
            "category": 4,
        },
        {
            "question": "How many lamps and kites did Nora have?",
            "answer": 2,
            "evidence": ["D1:1; D2:2", "D", "D9:9"],
            "category": 1,
        },
        {
            "question": "What is Nora's boat called?",
            "adversarial_answer": "Swift",
            "evidence": ["D2:1"],
            "category": 5,
        },
        {
            "question": "Did Nora sail?",
            "answer": "No",
            "adversarial_answer": "Yes",
            "category": 5,
        },
    ],
    "event_summary": {"ignored": []},
}


def talk(**changes):
    """A copy of TALK with changed fields; ``session_1=`` and the like go inside."""
    made = copy.deepcopy(TALK)
    for name, value in changes.items():
        (made["conversation"] if "session" in name else made)[name] = value
    return made


def write(folder, *talks, name="talks.json"):
    path = folder / name
    path.write_text(json.dumps(list(talks) or [TALK]))
    return str(path)
