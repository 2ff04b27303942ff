"""Pairs of notes, written by hand: the old one, the new one, and how they differ.

``TUNED`` was at hand while the lexical judge was built; ``HELD_OUT`` was written from
another angle and scored only once it stood. A line is ``old || new``; ``\\n`` in it is
a line break. Paraphrases are those that the default embedder places over its threshold.
"""

from __future__ import annotations

from typing import NamedTuple


class Pair(NamedTuple):
    old: str
    new: str
    kind: str

    @property
    def is_chinese(self) -> bool:
        return any("\u4e00" <= letter <= "\u9fff" for letter in self.old + self.new)


SAME = ("trivial", "paraphrase")  # nothing new
CHANGED = ("value", "negation", "swap")  # the same subject: may supersede the old note
OTHERS = ("reverse", "subject", "attribute", "unrelated")  # both notes must stay
# And "addition": the same and more.


def pairs_of(blocks: dict[str, str]) -> list[Pair]:
    """Every non-empty line of every block as one pair of that kind."""
    pairs = []
    for kind, block in blocks.items():
        for line in filter(str.strip, block.splitlines()):
            old, new = line.replace("\\n", "\n").split(" || ")
            pairs.append(Pair(old.strip(), new.strip(), kind))
    return pairs


TUNED = pairs_of(
    {
        "trivial": """
The gate code is 4711 || The gate code is 4711
The gate code is 4711 || the GATE code is 4711.
Ann lives in Rome || Note: Ann lives in Rome!
Bob is allergic to nuts || Please remember that Bob is allergic to nuts.
Ann's dog is called Rex || Ann's dog is called "Rex"
The meeting is on Friday at 15:00 || The meeting is now on Friday at 15:00
wifi password = hunter2 || wifi password: hunter2
wifi password: hunter2 || The wifi password is hunter2
budget: 1,000 euros || Budget: 1000 euros
Ann phone 17 || Ann's phone is 17
user: likes jazz\\nuser: hates rain || user: hates rain\\nuser: likes jazz
Bob isn't a doctor || Bob is not a doctor
The train leaves at 9:15, from platform 4 || The train leaves at 9:15 from platform 4
Garage: the spare key hangs left || garage - the spare key hangs left
Der Code ist 4711 || der Code ist 4711.
El código es 4711 || El código es 4711!
李雷住在北京 || 李雷住在北京。
李雷住在北京 || 李雷 住在 北京
王芳的电话是12345 || 王芳的电话：12345
会议在三楼开 || 会议在3楼开
密码是８８０１ || 密码是8801
小明现在有两只猫 || 小明有两只猫
""",
        "paraphrase": """
Bob moved to Berlin || Bob relocated to Berlin
Ann has three cats || Ann has 3 cats
Ann wrote the report || The report was written by Ann
Ann works as a nurse || Ann is a nurse
The capital of France is Paris || Paris is the capital of France
In March Ann moved to Rome || Ann moved to Rome in March
Ann lives in Rome || Ann is living in Rome
Ann lives in Rome with two dogs || Ann resides in Rome with two dogs
Bob's birthday is on March 5 || Bob's birthday is on 5 March
Bob's birthday is the 5th of March || Bob's birthday is March 5
Bob's favourite color is green || Green is Bob's favorite colour
Tom's phone number is 5551234 || Tom's telephone number is 5551234
The user likes dark mode || The user really likes the dark mode
The shop opens at 9 am || The shop is open from 9 am
Ann bought a red car || Ann has bought a red car
Ann and Bob got married in 2019 || Ann and Bob married in 2019
The cat sleeps on the sofa || The cat is sleeping on the sofa
Ann's mother is a teacher || The mother of Ann is a teacher
The project's deadline is Monday || The deadline of the project is on Monday
Bob drives to work every day || Every day, Bob drives to work
Eve is afraid of spiders || Eve fears spiders
The user's name is Carla || The user is called Carla
Anna wohnt seit 2020 in Berlin || Seit 2020 wohnt Anna in Berlin
李雷住在北京 || 李雷在北京住
李雷住在北京 || 李雷居住在北京市
李雷的生日是3月5日 || 李雷的生日是三月五号
会议在下午三点开始 || 会议下午3点开始
小明对花生过敏 || 花生会让小明过敏
张伟的电话是12345 || 12345是张伟的电话
王芳特别喜欢喝茶 || 王芳非常喜欢喝茶
""",
        "value": """
The gate code is 4711 || The gate code is 4712
The gate code is A-17 || The gate code is B-17
Ann lives in Rome || Ann lives in Milan
Ann's dog is called Rex || Ann's dog is called Max
The meeting is on Monday at 3 || The meeting is on Tuesday at 4
The train leaves at 9:15 from platform 4 || The train leaves at 9:45 from platform 4
Ann has three cats || Ann has four cats
Ann has 2 cats and a dog || Ann has 3 cats and a dog
Bob drives a red car || Bob drives a blue car
The parcel weighs 5 kg || The parcel weighs 5 g
The ticket costs $40 || The ticket costs €40
It is -5 degrees in Oslo || It is 5 degrees in Oslo
wifi password = hunter2 || wifi password = hunter3
port: 8080 || port: 8081
Bob's birthday is on March 5 || Bob's birthday is on March 15
Bob's birthday is on 5 March 1990 || Bob's birthday is on 5 May 1990
The user prefers Python || The user prefers Rust
Ann worked at Siemens || Ann works at Siemens
Bob earns more than 5000 a month || Bob earns less than 5000 a month
The report is due before Monday || The report is due after Monday
Ann moved to Rome || Ann moved from Rome
Bob's flight is on Friday morning || Bob's flight is on Friday evening
Ann: phone 17\\nemail a@x.org || Ann: phone 18\\nemail a@x.org
Ann's email is ann@mail.org || Ann's email is ann@post.org
The server runs version 1.2.3 || The server runs version 1.3.2
Der Zug fährt um 9 Uhr || Der Zug fährt um 10 Uhr
La reunión es el lunes || La reunión es el martes
李雷住在北京 || 李雷住在南京
李雷住在北京 || 李雷住在上海
会议在下午三点开始 || 会议在下午四点开始
李雷的生日是3月5日 || 李雷的生日是3月15日
王芳的电话是12345 || 王芳的电话是12354
小明有三只猫 || 小明有五只猫
王芳喜欢喝茶 || 王芳喜欢喝咖啡
这件衣服一百二十元 || 这件衣服一百五十元
密码是8801 || 密码是8810
""",
        "negation": """
Bob is allergic to nuts || Bob is not allergic to nuts
Ann eats meat || Ann does not eat meat
Ann eats meat || Ann never eats meat
Bob smokes || Bob no longer smokes
The door is locked || The door isn't locked
The user wants daily reports || The user doesn't want daily reports
There is milk in the fridge || There is no milk in the fridge
Ann lives in Rome || Ann used to live in Rome
Bob can come on Friday || Bob can't come on Friday
The deal is possible || The deal is impossible
Ann drinks coffee with sugar || Ann drinks coffee without sugar
Bob smokes || Bob stopped smoking
Anna isst Fleisch || Anna isst kein Fleisch
小明对花生过敏 || 小明对花生不过敏
李雷有车 || 李雷没有车
李雷吃肉 || 李雷从不吃肉
会议取消了 || 会议没取消
王芳结婚了 || 王芳未婚
""",
        "swap": """
Ann prefers tea over coffee || Ann prefers coffee over tea
The flight goes from Rome to Oslo || The flight goes from Oslo to Rome
从北京飞到上海 || 从上海飞到北京
""",
        "reverse": """
Alice owes Bob 5 euros || Bob owes Alice 5 euros
Ann is taller than Bob || Bob is taller than Ann
Tom is the father of Jim || Jim is the father of Tom
Ann sits left of Bob, Bob left of Eve || Bob sits left of Ann, Ann left of Eve
Room 4 is above room 5 || Room 5 is above room 4
李雷比韩梅梅高 || 韩梅梅比李雷高
小明借给小红十元 || 小红借给小明十元
""",
        "subject": """
Ann's phone is 17 || Bob's phone is 17
Bob Smith lives in Rome || Bob Jones lives in Rome
Ann's sister lives in Rome || Ann's brother lives in Rome
The north door code is 4711 || The south door code is 4711
Room 12 has a cat || Room 13 has a cat
The guest room is cold || The living room is cold
Ann: 17 || Bob: 17
Ann:\\nphone 17\\ndesk 4 || Bob:\\nphone 17\\ndesk 4
Ann is a nurse. She lives in Rome. || Eve is a nurse. She lives in Rome.
Project alpha starts on Monday || Project beta starts on Monday
李雷住在北京 || 李明住在北京
王芳的电话是12345 || 王强的电话是12345
张三喜欢红色 || 李四喜欢红色
""",
        "attribute": """
Ann's phone is 17 || Ann's desk is 17
Ann's phone is 17 || Ann's email is ann@x.org
The height of the tower is 30 m || The width of the tower is 30 m
Bob was born in Rome || Bob works in Rome
李雷的电话是17 || 李雷的座位是17
王芳的父亲是医生 || 王芳的母亲是医生
""",
        "addition": """
Ann lives in Rome || Ann lives in Rome with her dog
Ann has a cat || Ann has a cat and a parrot
The meeting is on Friday || The meeting is on Friday at 15:00 in room 4
Bob is allergic to nuts || Bob is allergic to nuts. He carries a pen.
Ann phone 17 || Ann phone 17\\nBob phone 23
Bob: likes jazz || Bob: likes jazz and blues
李雷住在北京 || 李雷和他的狗住在北京
小明有一只猫 || 小明有一只猫和一只狗
会议在周五 || 会议在周五下午三点
""",
        "unrelated": """
Ann lives in Rome || The gate code is 4711
The gate code is 4711 || The gate was painted in 2011
Bob likes jazz || Bob's boss is on holiday
port: 8080 || The ship entered the port at 8
Ann lives in Rome || Flights to Rome leave daily
李雷住在北京 || 王芳喜欢喝茶
北京今天下雨 || 北京大学在海淀区
""",
    }
)

# What an assistant notes down at work: settings, orders, results, plans, places.
HELD_OUT = pairs_of(
    {
        "trivial": """
retry limit: 5 || Retry limit is 5.
The customer wants an aisle seat || the customer wants an AISLE seat
Deploy: blocked until the review is done || deploy blocked until the review is done
Luisa speaks Portuguese || Remember: Luisa speaks Portuguese
order 8812 was shipped || Order #8812 was shipped.
快递放在门口 || 快递放在门口了。
项目预算是两万元 || 项目预算：20000元
赵敏明天去广州 || 备注：赵敏明天去广州
""",
        "paraphrase": """
The build failed because of a missing header || The build failed due to a missing header
Luisa speaks two languages || Luisa can speak 2 languages
The keys are under the mat || Under the mat are the keys
Karim manages the sales team || The sales team is managed by Karim
The customer's budget is 900 euros || The customer has a budget of 900 euros
On 12 June the customer flies to Lima || The customer flies to Lima on June 12th
The new laptop arrived from Berlin today || The new laptop came from Berlin today
The tests are failing on Windows || The tests fail on Windows
Marta lavora a Milano dal 2018 || Dal 2018 Marta lavora a Milano
店里的营业时间是九点到十八点 || 店里营业时间是9点到18点
赵敏的爱好是摄影 || 摄影是赵敏的爱好
周五的会议改到了下周一 || 周五的会议被改到下周一
""",
        "value": """
retry limit: 5 || retry limit: 50
The customer wants an aisle seat || The customer wants a window seat
The API returns JSON || The API returns XML
Karim reports to Ingrid || Karim reports to Luisa
The hotel is booked for 3 nights || The hotel is booked for 4 nights
timeout=30s || timeout=30ms
The tent sleeps two people || The tent sleeps six people
El vuelo sale a las 8 || El vuelo sale a las 9
Order 8812: status open || Order 8812: status closed
The warranty ends in June 2026 || The warranty ends in July 2026
项目预算是两万元 || 项目预算是三万元
赵敏明天去广州 || 赵敏明天去深圳
钥匙在抽屉里 || 钥匙在背包里
""",
        "negation": """
The tests pass on Windows || The tests don't pass on Windows
Karim has access to the server || Karim has no access to the server
The refund was approved || The refund was never approved
Luisa can drive || Luisa cannot drive
La puerta está abierta || La puerta no está abierta
服务器已经修好了 || 服务器还没修好
赵敏喜欢吃辣 || 赵敏不喜欢吃辣
""",
        "swap": """
Ship the lamp first and the desk second || Ship the desk first and the lamp second
Karim moved from sales to support || Karim moved from support to sales
""",
        "reverse": """
Karim replaced Ingrid || Ingrid replaced Karim
赵敏教陈刚法语 || 陈刚教赵敏法语
""",
        "subject": """
Order 8812 was shipped || Order 8813 was shipped
Karim manages the sales team || Ingrid manages the sales team
The Windows build is green || The Linux build is green
customer A: vegetarian || customer B: vegetarian
赵敏明天去广州 || 陈刚明天去广州
一号仓库已满 || 二号仓库已满
""",
        "attribute": """
The customer's budget is 900 euros || The customer's deposit is 900 euros
Karim studied in Cairo || Karim married in Cairo
赵敏的手机坏了 || 赵敏的电脑坏了
""",
        "addition": """
Luisa speaks Portuguese || Luisa speaks Portuguese and some Dutch
The keys are under the mat || The keys are under the mat by the back door
快递放在门口 || 快递放在门口的箱子里
""",
        "unrelated": """
The keys are under the mat || The customer flies to Lima on 12 June
Karim manages the sales team || Sales rose by 4 percent in May
快递放在门口 || 赵敏的爱好是摄影
""",
    }
)
