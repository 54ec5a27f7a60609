"""What changes together with gamma, the learning rate and with it the weight decay: does the gain outlive it?"""

from smallinit.analysis import claims
from smallinit.analysis.claim_needs import BOTH, absent
from smallinit.analysis.claims import Effect
from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.needed import complete
from smallinit.analysis.resamples import mean_losses

RATES = (BOTH, "slow", "fast")  # the tuned rate, half of it, twice of it; else the same
UNDECAYED = "undecayed"


def best_rate(arms: Arms, size: str, gamma: float) -> str:
    """The variant of RATES with the lowest loss, over the documents by which gains are judged."""
    losses = mean_losses(arms.results.documents, [str(arms.run(size, gamma, variant)) for variant in RATES])
    return RATES[int(losses.argmin())]


def gain_at_best_rates(arms: Arms) -> list[Effect]:
    """Gain of gamma = 1 where each arm has the best of three rates, half, once and twice its tuned one."""
    parts = {
        size: {(size, BASE, best_rate(arms, size, BASE)): 1.0, (size, SMALL, best_rate(arms, size, SMALL)): -1.0}
        for size in complete(arms, RATES)
    }
    return claims.contrasts(arms, parts)


def lacks_rates(arms: Arms) -> str:
    """What is missing for that."""
    return absent(arms, RATES, sizes=arms.sizes()[:1])


def gain_in(arms: Arms, variant: str) -> list[Effect]:
    """Gain of gamma = 1 in a variant, at each size that has it."""
    return claims.contrasts(arms, {size: claims.gain(size, variant) for size in complete(arms, (variant,))})


def gain_without_decay(arms: Arms) -> list[Effect]:
    """Gain of gamma = 1 where no weight decays; else, acting through the rate, decay differs between the arms."""
    return gain_in(arms, UNDECAYED)


def lacks_decay(arms: Arms) -> str:
    """What is missing for that."""
    return absent(arms, (UNDECAYED,), sizes=arms.sizes()[:1])
