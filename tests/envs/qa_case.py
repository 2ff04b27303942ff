"""Questions of our own in HotpotQA's form, and countries of our own as a Factbook."""

import json
import random

PEOPLE = (
    *("Ada Fenwick", "Boris Quell", "Cora Lindqvist", "Dario Penn", "Edda Marsh"),
    *("Felix Orlow", "Greta Holm", "Hugo Varga", "Ines Calder", "Jonas Reed"),
    *("Kira Stone", "Levi Thorn", "Mona Gray", "Nils Birk", "Olga Finch", "Piet Vos"),
)
TOWNS = (
    *("Aldmoor", "Brackwater", "Corvale", "Dunmere", "Eastfold", "Farrow", "Glimhold"),
    *("Harrowgate", "Isling", "Jorvale", "Kesterby", "Lornmouth", "Marlow Cross"),
    *("Northwick", "Oxbury", "Penhallow"),
)
RIVERS = (
    *("Arden", "Brim", "Colne", "Dore", "Esk", "Fleet", "Garn", "Hollow", "Ivel"),
    *("Juno", "Kell", "Lathe", "Mersey Brook", "Nadder", "Orwell", "Piddle"),
)


def record(at, **changes):
    """One record: its person lives in a town, and a river runs past the town."""
    person, town, river = PEOPLE[at], TOWNS[at], RIVERS[at]
    other = TOWNS[(at + 1) % len(TOWNS)]
    made = {
        "_id": f"own{at}",
        "question": f"Which river runs past the home town of {person}?",
        "answer": f"the River {river}",
        "type": "bridge",
        "level": "easy",
        "supporting_facts": [[person, 1], [town, 0]],
        "context": [
            [person, [f"{person} paints boats.", f" {person} grew up in {town}."]],
            [town, [f"{town} lies on the River {river}.", " It has a mill."]],
            [f"{other} Fair", [f"The fair of {other} sells wool and bells."]],
        ],
    }
    return made | changes


def write(path, records=None, lines=False):
    """A file of ``records`` (all of ours if None), as an array or as lines."""
    records = [record(at) for at in range(len(PEOPLE))] if records is None else records
    if lines:
        path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    else:
        path.write_text(json.dumps(records, indent=1), encoding="utf-8")
    return path


def large_file(path, megabytes):
    """A valid file of about so many megabytes; returns how many records it has."""
    rng, count, written = random.Random(0), 0, 0
    words = [f"word{n}" for n in range(5_000)]
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        while written < megabytes * 1_000_000:
            made = record(count % len(PEOPLE), _id=f"id{count}")
            made["question"] += f" {count}"
            made["context"] += [
                [f"Filler {count} {n}", [" ".join(rng.choices(words, k=90))]]
                for n in range(8)
            ]
            text = json.dumps(made)
            file.write(f",\n{text}" if count else text)
            count, written = count + 1, written + len(text)
        file.write("]")
    return count


def country(name, capital, borders, peak, **fields):
    """Factbook fields of a country, with the blemishes that the real ones have."""
    made = {
        "Geography": {
            "Area": {"total ": {"text": f"{len(name)},500 sq km"}},
            "Land boundaries": {
                "total": {"text": "900 km"},
                "border countries": {"text": borders},
            },
            "Elevation": {"highest point": {"text": f"{peak} 1,204 m"}},
        },
        "Government": {
            "Country name": {
                "conventional short form": {"text": name},
                "conventional long form": {"text": f"Republic of {name}"},
            },
            "Capital": {
                "name": {"text": f"<p>{capital}</p><br><strong>note:</strong> old"},
                "time difference": {"text": "UTC+1"},
            },
        },
        "Economy": {
            "Exchange rates": {
                "Currency": {"text": f"{capital} crowns (XXC) per US dollar -"}
            }
        },
    }
    return made | fields


COUNTRIES = {
    "aa": country("Arvia", "Arvo", "Bren 300 km; Corland 1,200 km", "Mount Arv"),
    "bb": country("Bren", "Brenton", "Arvia 300 km; Corland 300 km", "Bren Hill"),
    "cc": country(
        "Corland", "Cor City", "Republic of Arvia 1,200 km; Bren 300 km", "Co"
    ),
    "dd": country("none", "Nowhere", "", "unnamed location"),
    "ee": country("Ezzia", "Ezz (official); Zed", "Bren 10 km; Atlantis 90 km", "E"),
}
