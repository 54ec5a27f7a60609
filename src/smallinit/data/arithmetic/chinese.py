"""Problems in Chinese: phrases, themes and people. Themes and phrases for the test occur in no training text.

The things of one theme share a measure word, which its sentences name: 本 for what is read, 棵 for what is planted.
"""

from smallinit.data.arithmetic.stories import Theme
from smallinit.data.arithmetic.wording import Wording

PHRASES = (
    ("equals", "{}等于多少？"),
    ("calculate", "计算：{}。"),
    ("how-much", "{}是多少？"),
    ("result", "{}的结果是多少？"),
    ("please", "请计算{}。"),
    ("reckon", "算一算，{}等于几？"),
)
TEST_PHRASES = (
    ("value", "求{}的值。"),
    ("try", "试求：{}得多少？"),
)

THEMES = (
    Theme(
        name="fruit",
        things=("苹果", "橙子", "梨", "桃子", "柠檬"),
        given="{name}有{n}个{thing}。",
        groups="{name}有{m}篮{thing}，每篮{n}个。",
        more=("{name}又买了{n}个。", "{he}又摘了{n}个。"),
        less=("{name}送给朋友{n}个。", "{he}卖掉了{n}个。"),
        ask="{name}有多少个{thing}？",
        share="{he}把它们平均装进{n}个袋子。每个袋子有多少个{thing}？",
    ),
    Theme(
        name="library",
        things=("书", "杂志", "画册", "词典"),
        given="图书馆有{n}本{thing}。",
        groups="图书馆有{m}个书架，每个书架上有{n}本{thing}。",
        more=("{name}送来{n}本。", "图书馆又买了{n}本。"),
        less=("{name}借走了{n}本。", "图书馆借出了{n}本。"),
        ask="图书馆里有多少本{thing}？",
        share="它们平均放在{n}张桌子上。每张桌子上有多少本{thing}？",
    ),
    Theme(
        name="bakery",
        things=("蛋糕", "饼干", "面包", "月饼"),
        given="面包师做了{n}块{thing}。",
        groups="面包师做了{m}盘{thing}，每盘{n}块。",
        more=("{name}又做了{n}块。", "{name}又拿来{n}块。"),
        less=("{name}买走了{n}块。", "{name}吃掉了{n}块。"),
        ask="有多少块{thing}？",
        share="把它们平均分给{n}家商店。每家商店得到多少块{thing}？",
    ),
    Theme(
        name="collection",
        things=("邮票", "硬币", "徽章", "纪念章"),
        given="{name}收集了{n}枚{thing}。",
        groups="{name}有{m}本册子，每本里有{n}枚{thing}。",
        more=("{he}又找到了{n}枚。", "别人送给{name}{n}枚。"),
        less=("{he}丢了{n}枚。", "{name}送出了{n}枚。"),
        ask="{name}有多少枚{thing}？",
        share="{he}把它们平均分给{n}个孩子。每个孩子得到多少枚{thing}？",
    ),
    Theme(
        name="farm",
        things=("羊", "鸡", "鸭", "兔子", "鹅"),
        given="农场有{n}只{thing}。",
        groups="农场有{m}个圈，每个圈里有{n}只{thing}。",
        more=("{name}又带来{n}只。", "农民又买了{n}只。"),
        less=("{name}带走了{n}只。", "农民卖掉了{n}只。"),
        ask="农场有多少只{thing}？",
        share="把它们平均关进{n}个棚子。每个棚子里有多少只{thing}？",
    ),
    Theme(
        name="school",
        things=("铅笔", "钢笔", "毛笔", "圆珠笔"),
        given="老师有{n}支{thing}。",
        groups="老师有{m}盒{thing}，每盒{n}支。",
        more=("{name}送来{n}支。", "学校又发了{n}支。"),
        less=("{name}拿走了{n}支。", "班里用掉了{n}支。"),
        ask="老师有多少支{thing}？",
        share="老师把它们平均分给{n}个小组。每个小组得到多少支{thing}？",
    ),
    Theme(
        name="train",
        things=("乘客", "游客", "工人", "学生"),
        given="火车上有{n}名{thing}。",
        groups="火车有{m}节车厢，每节车厢有{n}名{thing}。",
        more=("到站后又上来{n}名。", "后来又来了{n}名。"),
        less=("到站后下去了{n}名。", "后来走了{n}名。"),
        ask="火车上有多少名{thing}？",
        share="他们平均坐在{n}节车厢里。每节车厢有多少名{thing}？",
    ),
    Theme(
        name="garden",
        things=("桃树", "松树", "白菜", "竹子"),
        given="{name}的园子里有{n}棵{thing}。",
        groups="{name}的园子里有{m}行{thing}，每行{n}棵。",
        more=("{he}又种了{n}棵。", "邻居又种了{n}棵。"),
        less=("{he}砍掉了{n}棵。", "大风吹倒了{n}棵。"),
        ask="园子里有多少棵{thing}？",
        share="它们平均种成{n}行。每行有多少棵{thing}？",
    ),
)
TEST_THEMES = (
    Theme(
        name="kitchen",
        things=("鸡蛋", "土豆", "洋葱", "西红柿"),
        given="厨师有{n}个{thing}。",
        groups="厨师有{m}碗{thing}，每碗{n}个。",
        more=("{name}送到厨房{n}个。",),
        less=("{name}煮了{n}个。",),
        ask="厨房里有多少个{thing}？",
        share="把它们平均放进{n}口锅。每口锅里有多少个{thing}？",
    ),
    Theme(
        name="harbor",
        things=("渔船", "货船", "轮船", "帆船"),
        given="{name}看见港口有{n}艘{thing}。",
        groups="{name}看见港口有{m}排{thing}，每排{n}艘。",
        more=("早上开来了{n}艘。",),
        less=("晚上开走了{n}艘。",),
        ask="港口有多少艘{thing}？",
        share="它们属于{n}个城市，每个城市一样多。每个城市有多少艘{thing}？",
    ),
    Theme(
        name="toys",
        things=("珠子", "弹珠", "糖果", "棋子"),
        given="{name}在地上放了{n}颗{thing}。",
        groups="{name}在地上摆了{m}堆{thing}，每堆{n}颗。",
        more=("{he}再放上{n}颗。",),
        less=("{he}收起{n}颗。",),
        ask="地上有多少颗{thing}？",
        share="{he}把它们放进{n}个抽屉，每个抽屉一样多。一个抽屉里有多少颗{thing}？",
    ),
)


def _people(names: str, he: str) -> tuple[dict[str, str], ...]:
    return tuple({"name": name, "he": he} for name in names.split())


WORDING = Wording(
    before_question="问题：",
    before_answer="解答：",
    answer="答案是{}。",
    space="",
    stop="。",
    labels={"+": "这时：", "-": "剩下：", "×": "一共：", "÷": "每份："},
    phrases={"train": PHRASES, "test": TEST_PHRASES},
    themes={"train": THEMES, "test": TEST_THEMES},
    people=_people("小明 小刚 小华 小军 小林 小强 小龙 小东", "他")
    + _people("小红 小丽 小芳 小玲 小燕 小梅 小云 小霞", "她"),
)
