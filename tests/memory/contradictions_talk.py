"""Pairs as they come from talk and titled notes: "Speaker: ..." and "Title, day: ...".

The heading is the same on both sides of most, which makes any two remarks look like
two values of one key.
"""

from __future__ import annotations

from tests.memory.contradictions import pairs_of

CONVERSATION = pairs_of(
    {
        "trivial": """
Ida: My boat is called Wren. || Ida: my boat is called Wren
Olaf, 3 May 2031: The bakery shuts at 9. || Olaf, 3 May 2031: The bakery shuts at 9!
desk: 4 || The desk is 4
name: Ida || Name: Ida.
meeting room: B12 || Meeting room is B12
Ida: vegetarian || Ida is vegetarian
Order 77: status open || order 77: Status open.
访客：李雷住在北京 || 访客：李雷住在北京。
""",
        "paraphrase": """
Ida: I have three goats. || Ida: I have 3 goats
Olaf: I sold the old van to Eva in June. || Olaf: I sold the van to Eva in June.
Ida, May: The choir meets every Sunday in Ulm. || Ida, May: The choir meets every Sunday
Olaf: In March I moved to Bergen. || Olaf: I moved to Bergen in March.
Ida: My aunt's favourite colour is red. || Ida: Red is my aunt's favorite color.
Travel: the ferry leaves at 5 pm || Travel: the ferry leaves at 17:00
Ida: Yesterday I baked two loaves for the fair. || Ida: I baked two loaves.
访客：王芳特别喜欢喝茶 || 访客：王芳非常喜欢喝茶
""",
        "value": """
code: 4711 || code: 4712
desk: 4 || desk: 9
meeting room: B12 || meeting room: C3
name: Ida || name: Olga
status: open || status: closed
Ida: the gate code is 4711 || Ida: the gate code is 4712
Ida: My boat is called Wren. || Ida: My boat is called Tern.
Ida, 1 May: My phone is 17 || Ida, 1 May: My phone is 18
Olaf: I live in Bergen. || Olaf: I live in Oslo now.
Contacts: Ida phone 17 || Contacts: Ida phone 18
Travel: the ferry leaves at 17:00 || Travel: the ferry leaves at 18:30
房间：301 || 房间：302
访客：李雷住在北京 || 访客：李雷住在上海
""",
        "negation": """
Ida: I eat meat. || Ida: I don't eat meat.
Olaf: The cellar door is locked. || Olaf: The cellar door isn't locked.
Travel: the ferry runs on Sundays || Travel: the ferry does not run on Sundays
""",
        "subject": """
Ida: My boat is called Wren. || Olaf: My boat is called Wren.
Contacts: Ida phone 17 || Contacts: Olaf phone 17
Olaf: Your help means a lot to me. || Ida: Thanks Olaf, your help means a lot to me.
Ida: My brother lives in Oslo. || Ida: My aunt lives in Oslo.
访客：李雷住在北京 || 访客：王芳住在北京
""",
        "attribute": """
Contacts: Ida phone 17 || Contacts: Ida desk 17
Ida: likes jazz || Ida: hates rain
Olaf: bought a barn || Olaf: sold the mill
Ida: sings || Ida: paints
Ida, 1 May: I study law. || Ida, 1 May: I keep bees.
""",
        "unrelated": """
Ida: Wow! || Ida: Thanks!
Ida: Hello! || Ida: I keep bees.
Olaf: Fair enough. || Olaf: Same here.
Olaf: Good morning, Ida. || Olaf: Take your time.
Ida, 1 May 2031: Well done. || Ida, 1 May 2031: No worries.
Ida, 1 May 2031: Yeah, it hurts. || Ida, 1 May 2031: Good luck with that!
Olaf, 3 May: What was the play about? || Olaf, 3 May: What does the word mean?
Olaf: How is the harvest? || Olaf: How is the choir?
Ida: That sounds lovely. || Ida: That sounds tiring.
Ida: The play was lovely! || Ida: It was lovely!
Ida: The choir sang in Ulm and it was a lovely evening for us. || Ida: That's lovely.
Olaf: Do you sell goat cheese at the fair? || Olaf: I sell goat cheese.
Olaf: I never knew the harvest brings so many people to town. || Olaf: Harvest town.
Ida: I love when the choir tries a new song. || Ida: I'd love to try!
Ida: You must have had a good reason. || Ida: That's good.
访客：谢谢 || 访客：李雷住在北京
""",
        "addition": """
Ida: My boat is called Wren. || Ida: My boat is called Wren and lies in Bergen.
Travel: the ferry leaves at 17:00 || Travel: the ferry leaves at 17:00 from pier 4
Olaf: likes jazz || Olaf: likes jazz and blues
""",
    }
)
REMARKS = [
    ("Ida: Wow!", "Ida: Thanks!"),
    ("Ida: Hello, Olaf.", "Ida: Thanks, Olaf."),
    ("Olaf, 3 May: Nice!", "Olaf, 3 May: Sounds fun."),
    ("Olaf: It was great fun.", "Olaf: That's great fun."),
    ("Ida: What do you need?", "Ida: What do you want?"),
    ("Ida: That sounds grand.", "Ida: That sounds awful."),
    ("Ida: Have a great day.", "Ida: Have a great trip!"),
    ("Ida: I see.", "Ida: I do."),
]
