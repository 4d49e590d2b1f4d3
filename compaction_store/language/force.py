"""Recognizes words of lasting force ("never", "always", "must") in ten languages.

Also recognizes sentences that only describe something, or that apply only once. Repetitions inside a repetition have a
limit, and each search is in a single sentence, so no text makes a search slow.
"""

from __future__ import annotations

import re
from functools import cache

from compaction_store.language.words import UNSPACED

# ruff: noqa: RUF001

# The beginning of a clause, where an imperative may follow.
_CLAUSE = (
    r"(?:^|[,;:.!(\u2013\u2014-] ?|\b(?:and|but|also|so|please|then|you|we|just|again|again,|ok|okay|no|yes|plus|or"
    r"|must|should|shall|will"
    r"|can|may|to|that you|do) )"
)
_ENGLISH = (
    rf"{_CLAUSE}(?:never|always) (?!mind\b|been\b|had\b|was\b|is\b|are\b|seen\b)\w"
    rf"|{_CLAUSE}(?:do not|don'?t|dont) (?:you )?(?:ever )?"
    r"(?!worry\b|know\b|think\b|have\b|see\b|understand\b|care\b|mind\b|remember\b|forget\b|believe\b|recall\b"
    r"|want\b|like\b"
    r"|need\b|get\b|you\b|we\b|i\b|seem\b|work\b|exist\b|match\b|really\b|hesitate\b|bother\b)\w"
    r"|\b(?:must|should|shall|may|can) (?:never|always|not|only)\b|\b(?:mustn|shouldn)'t\b|\bcan only\b"
    r"|(?<!\bit)(?<!\bthere)(?<!\bthat)(?<!\bthis)(?<!\bi) must (?!have been\b|be (?:an?|some|the|because)\b)\w"
    r"|(?:^|[,;.] )no (?!problem|worr|way|thank|need|idea|luck|doubt|wonder|kidding)(?:more )?(?:\w+ ){0,2}\w+!"
    r"|\b(?:i|we) (?:would |'d )?only (?:ever )?want\b"
    r"|\b(?:from now on|from here on|going forward|from this point on|for the rest of (?:this|the|our)"
    r"|in (?:the )?future"
    r"|at all times|under no circumstances?|in no case|no matter what|without exception|at any point|on no account)\b"
    rf"|{_CLAUSE}(?:every time|each time|whenever|any time) (?:you|we|i ask|i say)\b"
    r"|\bwithout (?:first )?(?:my|our|explicit|prior|asking|checking with|getting|the user'?s?|an? )"
    r" ?(?:\w+ ){0,2}(?:approval|permission|consent|confirmation|go-ahead|me|us|review|ok)\b"
    rf"|{_CLAUSE}only (?:ever |use|touch|edit|change|modify|write|answer|reply|respond|commit|push|run|call|work"
    rf"|read)"
    r"|(?:\b(?:is|are)|'re|'s) (?:off[- ]limits|forbidden|prohibited|not allowed|not permitted|mandatory|required)\b"
    r"|\b(?:never ever|no exceptions|strictly forbidden|stop (?:using|doing|adding|writing|putting|creating|making"
    r"|calling))\b"
    r"|\b(?:i|we|user|users|the user|client|the client|customer) (?:always |strongly |would |really )?(?:prefers?"
    r"|insists?)\b"
    rf"|{_CLAUSE}(?:avoid (?:\w+ing|any|the)|refrain from|stick (?:to|with)|stay (?:away from|out of)|keep using)\b"
    r"|\b(?:hard|safety|strict|standing|ground|golden) (?:rule|constraint|limit|requirement)s?\b"
    r"|\b(?:i|we)(?:'d| would)? (?:only )?(?:want|expect|need|like|ask) (?:you )?(?:to )?(?:always|never|only)\b"
    r"|\b(?:budget|spending|time|price|cost|token)s? (?:cap|limit|ceiling|maximum)\b"
    # A rule that applies every time, with "a" or "any". A sentence about one thing would have "the" or "this" instead.
    rf"|{_CLAUSE}(?:when|before|after) you "
    r"(?!are\b|have\b|see\b|get\b|can\b|find\b|need\b|want\b|were\b|had\b|start\b)"
    r"(?:(?:answer|reply|respond|commit|push|merge|deploy|delete)\w{0,3},|\w+ (?:an?|any|some\w*|[a-z]{2,}s) ?[^.;]*?,)"
    # Rules about the form of answers.
    rf"|{_CLAUSE}(?:reply|answer|respond|speak|talk) (?:(?:to )?me )?(?:only )?(?:in|with|as) \w"
    rf"|{_CLAUSE}(?:begin|end|start|finish|sign|write|put|add|include|keep|format|use|give|say|quote|mark) "
    r"[^.;:]{0,60}\b(?:(?:every|each)(?: of your)?|(?:in|of|to|with) (?:all (?:of )?)?your|in all)"
    r" (?:repl(?:y|ies)|answers?|responses?|messages?)\b"
    rf"|{_CLAUSE}(?:use|write|pick|choose|give|call) [^,.;:]{{2,60}}, not \w"
    # Orders to ask before doing something, orders to leave something unchanged, and rules for all things of a kind.
    rf"|{_CLAUSE}(?:ask|tell|check with|warn|notify) me (?:first )?(?:before|whenever|when|each time|every time)\b"
    rf"|{_CLAUSE}(?:leave|keep) [^.,;:]{{2,60}} (?:alone|untouched|unchanged|as (?:it|they) (?:is|are))\b"
    rf"|{_CLAUSE}keep (?:all|every|each|any) \w"
    r"|(?:^|[,;:] (?:so )?)no \w+ (?:\w+ )?(?:may|must|can|should)\b"
    r"|(?:^|[,;:] )(?:all|every|each|any) [^.,;:]{2,60} (?:must|should|shall|go(?:es)? in(?:to)?|(?:has|have|needs?) to"
    r"|(?:is|are) to)\b"
    r"|\bonly after i\b|\bwhatever happens\b"
    r"|\b(?:before|after|on|for|in|with) (?:every|each|any) (?:commit|change|push|merge|deploy\w*|release|edit|file"
    r"|function|class|test|turn|answer|reply|task|step)\b|\bevery turn\b"
    r"|\bunless (?:i\b|we\b|explicitly|asked|requested|the user)"
    r"|\b(?:explicit|prior) (?:approval|permission|consent)\b"
    rf"|{_CLAUSE}(?:avoid|prefer) (?!me\b|that\b)\w"
    rf"|{_CLAUSE}(?:use|answer|write|run|edit|change|touch|commit|reply|respond|push|read|call) only \w"
    r"|\b(?:i|we) (?:don'?t|do not|never) want (?:you )?to (?:see|find|have|get|use|touch|change)\b|\bhands off \w"
    rf"|{_CLAUSE}treat (?!this\b|it\b|that\b)[^.;:]{{2,60}} as \w|\bas a (?:general )?rule\b|\bstays? out of\b"
    r"|^nothing (?:gets?|is|goes) (?:ever )?(?:merged|deployed|pushed|released|committed|deleted|shipped|published"
    r"|changed|removed|installed|sent)\b"
)
_GERMAN = (
    r"\b(?:nie(?:mals)? (?:wieder )?|immer |stets |grundsätzlich |künftig |zukünftig |nur noch )"
    r"|\b(?:ab (?:jetzt|sofort|nun)|von nun an|von jetzt an|in zukunft|auf keinen fall|keinesfalls|in keinem fall"
    r"|unter keinen umständen|jedes mal,? wenn (?:du|sie)|ohne (?:meine|unsere|vorherige|ausdrückliche) \w+)\b"
    r"|\b(?:darfst|dürfen|darf|sollst|sollen|soll) (?:\w+ ){0,4}(?:nicht|nie|niemals|kein\w*|nur)\b"
    r"|\bantworte[nt]? (?:mir )?(?:bitte |nur )?(?:auf|in|mit) \w"
    r"|\b(?:jede[rsmn]?|alle|deinen?) (?:antwort|nachricht)(?:en)?\b"
    r"|\b(?:bevor|wenn|nachdem) du (?:ein\w*|etwas|irgend\w+) [^.;]*?,"
    r"|\b(?:frag|frage|fragen sie|sag|sagen sie|warn|warne) (?:mich|mir|uns)\b[^.;]*,? (?:bevor|wenn|vor)\b"
    r"|\b(?:bleibt|bleiben) (?:\w+ )?(?:unverändert|unangetastet|wie)\b"
    r"|^alle \w+ (?:\w+ ){0,4}(?:angeben|schreiben|in)\b"
    r"|\b(?:ausschließlich|nur (?:bei|wenn|nach|mit|noch))\b|^kein(?:e|en|er|erlei)? \w"
    r"|^(?:bitte )?(?:fass|fasst|rühr|rühre|rührt|lösch\w*|änder\w*|nimm|nehmt|mach|macht|pack|packt|schalte?t?|füge?t?"
    r"|lass|lasst) [^.;:?]{2,60} (?:nicht|nie|niemals) (?:an|ab|auf|um|weg|ein|aus|hinzu|mehr)\b"
    r"|^bitte [^.;:?]{2,80} (?:nie|niemals)\b|\bgenerell (?:auf|in|mit|ohne|nur|kein\w*)\b|\bgilt: ?\w"
    r"|\b(?:hältst|halte|haltet|halten sie) (?:dich|euch|sich) (?:\w+ ){0,6}an\b"
    r"|\b(?:frag|frage|fragt|fragen sie) (?:mich |uns |bitte ){0,2}(?:vorher|zuerst|erst)\b"
    r"|\b(?:verboten|untersagt|tabu)\b|^bitte (?:\w+ ){0,6}(?:nicht|keine?[nmrs]?) "
)
_FRENCH = (
    r"\b(?:jamais|toujours|dorénavant|désormais)\b|\b(?:à partir de maintenant|à l'avenir|en aucun cas"
    r"|sous aucun prétexte"
    r"|chaque fois que (?:tu|vous)|à chaque fois)\b"
    r"|(?:^|[,;:] )(?:s'il (?:te|vous) pla[iî]t,? )?(?:et )?n(?:e |')\w+(?:-\w+)? (?:pas|plus|rien|que)\b"
    r"|\b(?:il ne faut|tu ne dois|vous ne devez|on ne doit) (?:pas|plus|jamais)\b|\b(?:est"
    r"|sont) (?:strictement )?interdite?s?\b"
    r"|\bréponds?(?:ez)?(?:-moi)? (?:uniquement |seulement )?(?:en|par|avec) \w"
    r"|\b(?:chaque|(?:toutes )?(?:tes|vos)) (?:réponses?|messages?)\b"
    r"|\b(?:tous|toutes|chaque) [^.;:]{2,50} (?:doit|doivent)\b|\bsans (?:m'avoir|me|mon accord|mon avis"
    r"|confirmation|justification|validation)\b|\bsauf (?:demande|si|accord)\b|\bque lorsque\b|^(?:pas d[e'’]|préférer)"
    r"|^ne (?:pas )?\w+(?:er|ir|re)\b|^ne \w+ (?:pas|que)\b|\buniquement\b"
    r"|\b(?:demande|préviens|avertis)(?:-|z-)(?:moi|nous) (?:toujours )?avant\b|\binterdiction (?:\w+ )?de\b"
    r"|\b(?:doit|doivent) (?:rester|toujours|commencer|contenir|porter|respecter|utiliser|suivre)\b"
    r"|\bsystématiquement\b"
    r"|\bavant de [^.;:]{2,50},? (?:demandez?|préviens|prévenez|consultez?|vérifiez?)\b"
)
_SPANISH = (
    r"\b(?:nunca|jamás|siempre)\b|\b(?:de ahora en adelante|a partir de (?:ahora|hoy)|en adelante|en el futuro"
    r"|bajo ninguna circunstancia|bajo ningún concepto|en ningún caso|cada vez que|sin mi (?:permiso|aprobación"
    r"|autorización))\b"
    r"|(?:^|[,;:.] |\by |por favor,? )no (?:me |te |se |lo |la |los |las )?(?:toques?|hagas?|cambies?|borres?"
    r"|elimines?"
    r"|modifiques?|añadas?|agregues?|escribas?|ejecutes?|envíes?|compartas?|reveles?|subas?|pongas?|digas?|instales?"
    r"|llames?"
    r"|despliegues?|publiques?|menciones?|incluyas?|dejes?|permitas?|utilices?|abras?|muevas?|vayas?|actualices?"
    r"|uses? (?:el|la"
    r"|los|las|un|una|mi|tu|su|este|esta|ese|esa|nunca|más)|crees? (?:el|la|los|las|un|una|más|nuevos?))\b"
    r"|\b(?:está|están|queda|quedan) (?:terminantemente )?prohibid[oa]s?\b|\bno (?:se )?(?:debes?|deben|puedes?"
    r"|pueden) \w"
    r"|\brespond[ea](?:me|n)? (?:solo |sólo |únicamente )?(?:en|con) \w"
    r"|\b(?:cada|todas (?:tus|las)) (?:respuestas?|mensajes?)\b"
    r"|^no \w+(?:ar|er|ir)(?:lo|la|los|las|se)? \w|^no crees \w|^(?:solo|sólo|solamente) \w+(?:ar|er|ir)\b|^evita"
    r"|\bsin (?:confirmación|confirmar|preguntar|permiso|autorización)\b|\bmantén \w+ \w+"
    r"|\b(?:avis|pregunt|consult)\w* (?:siempre )?antes\b|\b(?:avíses?me|pregúntame|consúltame|avísame)\b"
    r"|\b(?:tod[oa]s?|cada) [^.;:]{2,50} (?:debe|deben|tiene que|tienen que)\b|\bno quiero (?:que \w|ver\b)"
    r"|\bantes de [^.;:]{2,50},? (?:pídeme|pide|pregúntame|pregunta|consúltame|consulta|avísame|avisa)\b"
)
_PORTUGUESE = (
    r"\b(?:nunca|jamais|sempre)\b|\b(?:de agora em diante|a partir de agora|daqui (?:em|para|pra) (?:diante|frente)"
    r"|no futuro"
    r"|em hipótese alguma|em nenhuma hipótese|em caso algum|de forma alguma|toda vez que"
    r"|sem (?:a )?minha (?:permissão|aprovação))\b"
    r"|(?:^|[,;:.] |\be |por favor,? )não (?:me |te |se |o |a |os |as )?\w{2,}(?:e|a|es|as|em|am)\b"
    r"|\b(?:é|são|está|fica) (?:estritamente )?proibid[oa]s?\b|\bnão (?:se )?(?:deve|devem|pode|podem) \w"
    r"|\bresponda(?:-me)? (?:só |apenas |somente )?(?:em|com) \w"
    r"|\b(?:cada|todas as(?: suas)?) (?:respostas?|mensage(?:m|ns))\b"
    r"|\b(?:tod[oa]s (?:os|as)|cada) [^.;:]{2,50} (?:deve|devem|tem de|têm de)\b"
    r"|\b(?:pergunte|avise)(?:-me)? (?:sempre )?antes\b"
    r"|\bantes de [^.;:]{2,50},? (?:me )?(?:pergunte|avise|peça|consulte|confirme)\b"
)
_ITALIAN = (
    r"\b(?:mai|sempre)\b|\b(?:d'ora in (?:poi|avanti)|da ora in (?:poi|avanti)|da adesso in poi|in futuro"
    r"|in nessun caso"
    r"|per nessun motivo|ogni volta che|senza (?:la )?mia (?:approvazione|autorizzazione)|senza il mio (?:permesso"
    r"|consenso))\b"
    r"|(?:^|[,;:.] |\be |per favore,? )non (?:mi |ti |si |lo |la |li |le )?\w{2,}(?:re|ate|ete|ite|are|ere|ire)\b"
    r"|\b(?:è|sono) (?:severamente )?(?:vietat|proibit)[oaie]\b|\bnon (?:si )?(?:devi|deve|devono|puoi|può"
    r"|possono) \w"
    r"|\brispondi(?:mi)? (?:solo |soltanto )?(?:in|con) \w|\b(?:ogni|tutte le(?: tue)?) (?:rispost[ae]|messaggi[oa]?)\b"
    r"|\b(?:tutt[ie] (?:i|gli|le)|ogni) [^.;:]{2,50} (?:deve|devono|va|vanno)\b"
    r"|\b(?:chiedimi|avvisami|chiedi) (?:sempre )?prima\b"
    r"|\bprima di [^.;:]{2,50},? (?:chiedimi|chiedi|avvisami|avvisa|consultami)\b"
    r"|^niente [^.;:]{2,50} senza (?:il|la) mi[oa]\b"
)
_RUSSIAN = (
    r"\b(?:никогда|всегда|впредь|отныне|нельзя|запрещено|запрещается|ни в коем случае|ни при каких|с этого момента"
    r"|с этих пор"
    r"|в дальнейшем|каждый раз,? когда|без моего (?:разрешения|согласия|одобрения))\b"
    r"|\bотвечай(?:те)? (?:мне )?(?:только )?(?:на|по|в|с)\b|\b(?:кажд\w+|всех|всегда) (?:ответ|сообщени)\w*"
    r"|(?:^|[,;:.] |\bи |пожалуйста,? )не \w{2,}(?:й|йте|и|ите|ь|ьте|айся|ся)\b"
    r"|^(?:все|каждый|каждая|каждую|каждое) [^.;:]{2,50}(?:(?:пиши|делай|используй|храни|оформляй|добавляй|проверяй"
    r"|называй|сохраняй|указывай)(?:те)?|должн\w+)\b|\bперед кажд\w+"
    r"|^(?:используй\w*|использовать|пиши|писать|отвечай|отвечать) (?:\w+ )?только\b"
    r"|\b(?:спрашивай|спрашивайте|предупреждай\w*)\b"
)
_CHINESE = (
    r"^(?:避免|使用中文|用中文|默认)|(?:永远|千万|绝对?|一律|务必|切勿|请勿|禁止|严禁|不得|不准|不许|必须|始终)|不要"
    r"|(?:^|[,。;、 请])别(?!的|人|处)"
    r"|从现在(?:开始|起)|从今以后|今后|以后(?:都|不|请|要|别|每|[^,。;]{1,10}都)|每次(?:都|[^,。;]{1,12}(?:前|后|时))|只(?:能|允许|准)|总是要|要一直"
    r"|(?:每[个個条條次一]|所有)(?:的)?(?:回答|回复|回覆|答复)|[用以][^,。;]{1,8}(?:回答|回复|回覆|答复)|(?:回答|回复|回覆)时"
    r"|永遠|千萬|絕對?|嚴禁|務必|請勿|必須|始終|從現在(?:開始|起)|從今以後|以後(?:都|不|請|要|別|每)"
)
_JAPANESE = (
    r"絶対に?|決して|必ず|常に|今後は?|これからは?|以後|以降は|毎回|ないで(?:ください|下さい|ね|$|。)"
    r"|(?:すべて|全て|各|毎回)の?(?:回答|返信|返答)|(?:で|を使って)(?:回答|返信|返答|答え)(?:して|てください|て)"
    r"|のみを?(?:使|で|行|記)|(?:日本語|英語)で[^。]{0,12}(?:記述|回答|書|コミュ)"
    r"|(?:て|で)は(?:いけ|なら|だめ|ダメ|駄目)|禁止|厳禁|しないこと|すること(?:$|。)"
)
_KOREAN = (
    r"절대로?|항상|반드시|앞으로는?|지금부터|이제부터|지 ?마(?:세요|라|십시오|요|$|[ .!])|지 말(?:아|고|것)|금지"
    r"|(?:모든|매|각) ?(?:답변|응답|메시지)|(?:로|으로)만? (?:답|대답|응답)(?:해|하|변)"
    r"|안 ?(?:돼|됩니다|된다)|매번|언제나"
)
_LETTERS = re.compile(r"[a-z]+")
# Every match of `_ENGLISH` contains a word of `_IN_ENGLISH`, and every match of `_LATIN` in an ASCII sentence a word of
# `_IN_LATIN`. Most sentences have none and need not be searched.
_IN_ENGLISH = frozenset(
    """
    never always not don dont must should shall mustn shouldn may can only now here forward point rest future times
    circumstances circumstance case matter exception account every each whenever any without off forbidden
    prohibited allowed permitted mandatory required exceptions stop prefer prefers insist insists avoid refrain
    stick stay keep no rule rules constraint constraints limit limits requirement requirements want expect need like
    ask cap ceiling maximum when before after reply answer respond speak talk replies answers response responses
    message messages use write pick choose give call tell check warn notify leave alone untouched unchanged all any
    whatever happens before after on for in with unless explicit prior hands treat nothing stays
    """.split()  # noqa: SIM905
)
_IN_LATIN = frozenset(
    """
    nie niemals immer stets nur nun sofort jetzt zukunft keinen keinesfalls keinem keine keiner kein keines nicht
    jedes ohne darfst darf soll sollst sollen verboten untersagt tabu bitte jamais toujours pas rien ne n aucun sous
    chaque maintenant interdit interdite interdits interdites nunca siempre adelante futuro bajo cada permiso no
    sempre agora daqui forma toda caso mai poi avanti nessun ogni senza non antworte antworten antwortet jede jeder
    jedem jeden alle deine deinen bevor wenn nachdem r responde responda respondan respondeme cada todas rispondi
    rispondimi tutte tes vos frag frage fragen sag sagen warn warne bleibt bleiben tous toutes demande avertis todos
    todas ausschlie bei nach mit sauf lorsque uniquement pr ne solo
    solamente evita sin mant antes pergunte avise chiedimi avvisami chiedi prima ogni
    fass fasst nimm nehmt mach macht pack packt schalt schalte lass lasst generell gilt halte haltet halten fragt
    interdiction doit doivent avant hoy quiero queda quedan todo toda prohibido prohibida prohibidos prohibidas fica
    proibido proibida tutti tutto tutta vietato vietata vietati vietate proibito proibita proibiti proibite niente
    deben debe tiene tienen devono deve
    """.split()  # noqa: SIM905
)
_NOT_FROM_LATIN = re.compile(f"[\\u0400-\\u04ff\\uac00-\\ud7af{UNSPACED}]")
_LATIN = f"{_GERMAN}|{_FRENCH}|{_SPANISH}|{_PORTUGUESE}|{_ITALIAN}"
_OTHER = f"{_RUSSIAN}|{_CHINESE}|{_JAPANESE}|{_KOREAN}"
# Words with which a summary may report an order. The text is searched in lower case, which is faster than ignoring the
# case.
_REPORTS = (
    r"\b(?:never|always|not|don'?t|must|only|no|without|avoid\w*|forb\w+|prohibit\w*|require[sd]?|prefers?|insists?"
    r"|shall"
    r"|should|rules?|constraints?|caps?|limits?|mandatory|wants?|ask(?:s|ed)(?! about)|nicht|kein\w*|nie(?:mals)?|nur"
    r"|immer|stets|ne|pas|jamais|toujours|nunca|jamás|siempre|sempre|mai|não|non"
    r"|sin|senza|sem|sans|не|нельзя|без)\b|[不勿别別無无]|ない|禁|않|마세요|말"
)
# Words at the beginning of a sentence that describes and does not order. The next pattern has words that limit an order
# to one occasion.
_DESCRIBES = (
    r"(?:(?:i|it|that|this|there|he|she|they|which|who|what|why|how|because|if it|when it|seems?|looks?|i'm|it's"
    r"|that's)\b(?!.{0,80}\b(?:you"
    r"|must|should|shall|prefers?|insists?|without|want|expect|from now on|off[- ]limits|forbidden|not allowed)\b)"
    r"|(?:ich|es|das|er|sie hat|warum|wieso|wir haben|wir hatten)\b|(?:je|j'|il (?!(?:ne )?faut"
    r"|est (?:strictement )?interdit)|elle|ça|cela|c'est|on a|pourquoi)\b"
    r"|(?:yo|eso|esto|él|ella|es|por qué|me|he|ha)\b|(?:eu|isso|isto|ele|ela|é que|por que)\b"
    # A sentence about what a thing does is not an order, unless it says that the thing must or may do it.
    r"|(?:der|die|das|le|la|les|el|los|las|o|os|as|il|lo|gli) (?!faut\b)\w+(?! .{0,120}\b(?:musst?|müss(?:en|t)"
    r"|soll(?:st|en|t)?|darf(?:st)?|dürf(?:en|t)|bleibt|bleiben|doit|doivent|interdite?s?|debe|deben|puede|pueden|se|prohibid[oa]s?|deve"
    r"|devem|devono|pode|podem|può|possono|va|vanno|proibid[oa]s?|vietat[oaie]|fasst|fassen)\b)"
    r"(?= .{0,80}\b(?:systématiquement|immer|nie|niemals|nicht|kein\w*|jamais"
    r"|toujours|nunca|jamás|siempre|sempre|mai|não|non|no|pas)\b)"
    r"|nunca (?:vi|vimos|tinha|havia|había|he|hemos|ha|han|tive|fiz|consegui|pude)\b"
    r"|non (?:ho|abbiamo|avevo|avevamo|hanno)\b|\S{1,12}[이가은는] .{0,80}(?:지 (?:않아요|못해요)|[았었했]어요)\W{0,3}$"
    r"|\w+ (?:никогда|всегда) (?:не )?\w{2,30}л[аио]?\b"
    r"|siempre (?:me|te|se|lo|la) \w+(?:e|a)\b|sempre (?:me|mi) \w+"
    r"|(?:io|questo|quello|lui|lei|perché|ho|ha)\b|(?:сервер|программа|тест|кнопка|страница|файл|сайт|сборка) \w+"
    r"|(?:я|он|она|оно|это|почему|мы (?:никогда|всегда))\b)"
)
_ONCE = (
    r"\b(?:yet|for now|right now|at the moment|this time|just once|for the moment|noch nicht|vorerst|diesmal"
    r"|pas encore|pour l'instant|todavía|por ahora|por enquanto|ainda não|per ora|non ancora|пока)\b"
    r"|\bnão (?:\w+ ){1,6}ainda\b|\bnon (?:\w+ ){1,6}ancora\b|暂时|先(?:别|不要|不用)|今のところ|まだ|아직"
)
# Function words and words of lasting force. A summary may replace these words with others.
FUNCTION_WORDS = frozenset(
    """
    a an the and or but if of to in on at by for from with without as is are was were be been being it its this that
    these those i you he she we they me him her us them my your his our their do does did don t not no never always
    must should shall can could may might will would please also then than so just only any all every each some when
    whenever time ever have has had there here what which who how why now going forward s re ve ll d m up out over
    into about again still more most very really use using used make makes made making sure one ones thing things
    something anything someone somebody give gives given giving even think know did done doing reply replies replying
    answer answers answering respond responds responding response responses write writes writing written pick choose
    want wants need
    needs like get got let lets ok okay unless until before after while other same own too der die das den dem des
    ein eine einen einem einer und oder aber wenn nicht nie niemals immer kein keine keinen bitte ich du er sie es
    wir ihr mich dich uns ist sind war auf im am zu zum zur mit ohne von vom für bei als auch nur noch ab jetzt
    sofort nun künftig darf darfst muss müssen soll sollen jedes mal le la les un une de et ou mais si ne pas jamais
    toujours plus je tu il elle nous vous ce cette ces est sont à au aux en dans sur avec sans pour par qui que
    dorénavant désormais svp mein meine meinen meiner mon ma mes ton ta tes sa ses notre votre vos mi mis tus su sus
    usa usan usar usano utiliza verwende benutze utilise meu minha seu sua mio mia suo
    el los las lo una unos unas y o pero nunca siempre jamás yo tú él ella nosotros son del
    al con sin por para favor partir ahora adelante os um uma e mas não sempre eu você ele ela nós é são da dos em
    na nos nas com sem gli uno ma non mai io lui lei noi è sono di della dei delle alla senza per che и или но если
    не никогда всегда я ты он она мы вы они это в на с со без от до по для к у о из за что как
    """.split()  # noqa: SIM905
)


@cache
def _compiled(pattern: str, flags: re.RegexFlag = re.IGNORECASE) -> re.Pattern[str]:
    """Compiles a pattern on its first use. That takes 10 ms, and most programs do not use these patterns."""
    return re.compile(pattern, flags)


def may_have_force(text: str) -> bool:
    """Returns False if no sentence of a text can have a word of lasting force. This is a quick test for long texts."""
    if not text.isascii():
        return True
    letters = _LETTERS.findall(text.lower())
    return not (_IN_ENGLISH.isdisjoint(letters) and _IN_LATIN.isdisjoint(letters))


def has_force(sentence: str) -> bool:
    """Returns whether a sentence has a word of lasting force in any of the languages."""
    letters = set(_LETTERS.findall(sentence.lower()))
    if not _IN_ENGLISH.isdisjoint(letters) and _compiled(_ENGLISH).search(sentence) is not None:
        return True
    may_be_latin = not sentence.isascii() or not _IN_LATIN.isdisjoint(letters)
    if may_be_latin and _compiled(_LATIN).search(sentence) is not None:
        return True
    return _NOT_FROM_LATIN.search(sentence) is not None and _compiled(_OTHER).search(sentence) is not None


def mentions_force(sentence: str) -> bool:
    """Returns whether a sentence of a summary may report an order.

    Such a sentence has a word of lasting force, a negation or a wish.
    """
    return _compiled(_REPORTS, re.NOFLAG).search(sentence.lower()) is not None or has_force(sentence)


def describes(sentence: str) -> bool:
    """Returns whether a sentence describes how something is, such as "it never works"."""
    return _compiled(_DESCRIBES).match(sentence) is not None


def is_for_once(sentence: str) -> bool:
    return _compiled(_ONCE).search(sentence) is not None
