"""English words that augmentation never replaces: they carry grammar, and a sentence falls apart without them.

Closed classes of words only, listed by class. Lists for search engines, scikit-learn's among them, hold words of
content as well (`fire`, `interest`, `sincere`, `empty`), which are what an augmented sentence should vary.
"""

_PRONOUNS = """
    i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its itself
    we us our ours ourselves they them their theirs themselves
    who whom whose which what whoever whatever whichever this that these those"""
_ARTICLES_AND_QUANTIFIERS = """
    a an the all any both each either neither every few many more most much less least other others another some such
    several none no own same enough"""
_VERBS_THAT_HELP = """
    am is are was were be been being have has had having do does did doing done
    can cannot could may might must shall should will would ought"""
_PREPOSITIONS = """
    about above across after against along among around as at before behind below beneath beside besides between beyond
    by despite down during except for from in inside into like near of off on onto out outside over per since
    than through throughout to toward towards under until up upon via with within without"""
_CONJUNCTIONS = "and but or nor so yet if because although though unless while whereas whether once lest"
_ADVERBS_OF_GRAMMAR = """
    not never only just too very also again further then thus there here when where why how ever even still already now
    always however therefore"""
_PIECES_OF_CONTRACTIONS = """
    s t d m o y ll re ve ain aren couldn didn doesn don hadn hasn haven isn mightn mustn needn shan shouldn wasn weren
    won wouldn"""

STOP_WORDS = frozenset(" ".join((
    _PRONOUNS, _ARTICLES_AND_QUANTIFIERS, _VERBS_THAT_HELP, _PREPOSITIONS, _CONJUNCTIONS, _ADVERBS_OF_GRAMMAR,
    _PIECES_OF_CONTRACTIONS)).split())
"""In lower case; contractions in the pieces that they are cut into at the apostrophe."""
