"""The words of the tiny base's world: topics, and the frames of sentences that speak of them.

Kept apart from the grammar so that both readers share it: :mod:`alora.base.tiny_corpus` (what the tiny base is
trained on) and the quickstart's conversations. Each pool is cut by :func:`held_out`, by position, so that a test row
can be made of words and sentences that no training row holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

WORD_CYCLE, FRAME_CYCLE = 3, 4


def held_out(pool: Sequence[str], cycle: int, held: bool) -> list[str]:
    """Every ``cycle``-th entry if ``held``, else all others."""
    return [entry for place, entry in enumerate(pool, start=1) if (place % cycle == 0) == held]


@dataclass(frozen=True)
class Topic:
    """One subject of talk. ``problems`` are noun phrases, ``actions`` imperatives, ``facts`` whole sentences."""

    name: str
    experts: tuple[str, ...]
    problems: tuple[str, ...]
    actions: tuple[str, ...]
    facts: tuple[str, ...]


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split(","))


_DOSES = _phrases("400 mg of, two tablets of, a double dose of, 10 ml of, one capsule of, 50 mg of, a small dose of")
_DRUGS = _phrases(
    """ibuprofen, aspirin, paracetamol, amoxicillin, naproxen, prednisone, codeine, diazepam, cetirizine, metformin,
    loratadine, penicillin, omeprazole, zinc syrup, melatonin, insulin, iron tonic, cortisone"""
)
_DRUG_ACTIONS = tuple(
    f"{verb} {_DOSES[(place + turn) % len(_DOSES)]} {drug}"
    for turn, verb in enumerate(("take", "start with", "swallow"))
    for place, drug in enumerate(_DRUGS)
)

HEALTH = Topic(
    name="health",
    experts=("doctor", "nurse", "pharmacist", "clinic"),
    problems=_phrases(
        """a sore throat, a high fever, chest pain, a stiff neck, a skin rash, an ear ache, a dry cough, stomach
        cramps, a swollen ankle, back pain, a bad migraine, dizzy spells, a runny nose, heart burn, numb fingers, an
        itchy scalp, blurred vision, a racing pulse, joint pain, an infected cut, a bleeding gum, high blood
        pressure, a bad bruise, trouble sleeping, a tooth ache, an upset belly, a twisted knee"""
    ),
    actions=(
        *_DRUG_ACTIONS,
        *_phrases(
            """put an ice pack on the joint, stop the tablets for a week, rub cortisone on the skin, drink salt water
            against the fever, wrap the wound in a bandage, double the dose before bed, treat the infection with
            penicillin, rinse the wound with alcohol, skip your insulin today, use an inhaler against the cough,
            press a warm bandage on the belly, change the tablets for a capsule, dab iodine on the cut, lower the
            fever with aspirin, breathe steam against the runny nose, mix the syrup with the tonic, hold an ice pack
            to the knee, strap the ankle with a bandage"""
        ),
    ),
    facts=_lines(
        """The body fights an infection with fever.
        Blood pressure changes during the day.
        Most adults sleep seven hours.
        The skin renews itself every month.
        A pulse is higher after a walk.
        The heart beats all day and night."""
    ),
)

OTHERS = (
    Topic(
        name="cooking",
        experts=("chef", "baker", "butcher"),
        problems=_phrases(
            """a burnt sauce, a dry cake, lumpy gravy, a soggy crust, tough meat, flat bread, salty soup, a runny
            omelette, sticky rice, bland beans, a cracked pie, sour dough"""
        ),
        actions=_phrases(
            """add two spoons of butter, bake it at 180 degrees, stir in a cup of cream, boil the potatoes longer, take
            the pan off the stove, use a pinch of sugar, knead the dough again, fry the onions in oil, whisk an egg
            into the sauce, rest the meat in foil, double the flour, rinse the rice in cold water"""
        ),
        facts=_lines(
            """Butter melts at a low heat.
            Dough grows because of yeast.
            Salt was once a kind of money.
            Soup is eaten all over the world."""
        ),
    ),
    Topic(
        name="cars",
        experts=("mechanic", "garage", "dealer"),
        problems=_phrases(
            """a flat tyre, a noisy engine, a dead battery, squeaky brakes, a cracked windscreen, an oil leak, a stuck
            gearbox, a weak clutch, a broken headlight, a rusty exhaust, a loose steering wheel, an engine warning
            light"""
        ),
        actions=_phrases(
            """swap the spark plugs, pour two litres of oil into the engine, charge the battery, pump the tyre to 32
            psi, bleed the brakes, tighten the fan belt, change the fuel filter, press the clutch slowly, spray the
            exhaust with rust cleaner, take the wheel off, fit a new headlight, drain the coolant"""
        ),
        facts=_lines(
            """An engine turns fuel into motion.
            Brakes get hot on long hills.
            A tyre loses air in winter.
            A battery is heavy because of lead."""
        ),
    ),
    Topic(
        name="garden",
        experts=("gardener", "nursery", "botanist"),
        problems=_phrases(
            """yellow leaves on my roses, slugs in the lettuce, a dying fern, weeds in the lawn, mouldy tomatoes, a
            bare hedge, wilted tulips, ants under the oak, a thin lawn, black spots on the apples, dry soil, a
            stunted palm"""
        ),
        actions=_phrases(
            """water the roses at dawn, cut the hedge to one metre, spread compost over the soil, dig up the weeds,
            move the fern into shade, feed the lawn with nitrogen, put straw under the tomatoes, plant the bulbs
            deeper, spray the leaves with soap water, take cuttings in spring, double the compost, rake the moss
            away"""
        ),
        facts=_lines(
            """Roses have been grown for centuries.
            Worms loosen the soil.
            Most bulbs sleep in winter.
            Moss likes shade."""
        ),
    ),
    Topic(
        name="money",
        experts=("banker", "accountant", "broker"),
        problems=_phrases(
            """a late bill, a large loan, an empty account, credit card debt, a falling stock, a tax letter, a small
            pension, a lost wallet, an unpaid invoice, a high mortgage, a blocked card, a strange bank fee"""
        ),
        actions=_phrases(
            """sell half of the shares, pay the loan first, move 400 dollars into savings, buy bonds with the rest,
            cancel the credit card, take a fixed rate mortgage, invest in an index fund, claim the tax back, split
            the pension in two, borrow from the bank, double the savings plan, put the cash into gold"""
        ),
        facts=_lines(
            """Interest is paid on most loans.
            A share is a part of a company.
            Taxes pay for roads.
            Gold has been money for ages."""
        ),
    ),
    Topic(
        name="travel",
        experts=("travel agent", "guide", "embassy"),
        problems=_phrases(
            """a missed train, a cancelled flight, a lost passport, a delayed ferry, an overbooked hotel, heavy
            luggage, a visa question, a long layover, a noisy hostel, a wrong ticket, a closed border, a late bus"""
        ),
        actions=_phrases(
            """book the night train, fly through Lisbon, take the ferry at noon, pack two small bags, stay near the
            harbour, rent a bicycle in town, change the ticket online, walk to the old castle, skip the museum on
            Monday, use the airport bus, catch the early tram, carry the passport with you"""
        ),
        facts=_lines(
            """Lisbon lies on seven hills.
            Trains are older than planes.
            A harbour is a busy place.
            The castle is very old."""
        ),
    ),
    Topic(
        name="computers",
        experts=("technician", "help desk", "administrator"),
        problems=_phrases(
            """a slow laptop, a frozen screen, a lost password, a full disk, a broken keyboard, a virus warning, a weak
            wifi signal, a missing file, a noisy fan, a printer jam, a blank monitor, a crashing browser"""
        ),
        actions=_phrases(
            """restart the router, delete the old files, install the new driver, press the reset key for ten seconds,
            clear the browser cache, unplug the printer, format the disk, add 8 GB of memory, update the software,
            copy the folder to a stick, change the password, run the virus scanner"""
        ),
        facts=_lines(
            """A disk stores files.
            The first browser was made in 1990.
            A router sends packets.
            Keyboards have about a hundred keys."""
        ),
    ),
    Topic(
        name="home",
        experts=("plumber", "electrician", "builder"),
        problems=_phrases(
            """a leaking tap, a blocked drain, a cold radiator, a squeaky door, damp walls, a broken window, a dripping
            roof, peeling paint, a loose tile, a dead socket, a cracked ceiling, a stuck lock"""
        ),
        actions=_phrases(
            """turn off the water main, seal the window with silicone, bleed the radiator, sand the door edge, paint
            the wall twice, drill two holes above the tile, pour soda down the drain, replace the tap washer, fill
            the crack with plaster, oil the lock, press the tile down, wrap the pipe in tape"""
        ),
        facts=_lines(
            """Paint dries faster in summer.
            Most pipes are made of copper.
            A radiator warms the air.
            Old walls are thick."""
        ),
    ),
    Topic(
        name="law",
        experts=("lawyer", "notary", "solicitor"),
        problems=_phrases(
            """a rent dispute, a parking fine, a broken contract, an unfair dismissal, a noisy neighbour, a lost
            deposit, a divorce letter, a court date, a copyright claim, a faulty lease, a missing will, an unsigned
            deed"""
        ),
        actions=_phrases(
            """sue the landlord, refuse the fine, sign the lease, send the contract back, appeal within 14 days, keep
            the deposit receipt, file a claim in court, ask for the deed, withhold the rent, name a witness, change
            the will, plead not guilty"""
        ),
        facts=_lines(
            """A contract binds two parties.
            Courts are open on weekdays.
            A will is read after death.
            A lease has a start date."""
        ),
    ),
    Topic(
        name="music",
        experts=("music teacher", "tuner", "conductor"),
        problems=_phrases(
            """a broken guitar string, a flat piano, a stiff bow, a hard chord, a shaky rhythm, a cracked violin, a
            weak singing voice, a loose drum, a dull trumpet, a buzzing amplifier, a fast solo, a new melody"""
        ),
        actions=_phrases(
            """tune the guitar to D, practise the scale slowly, put rosin on the bow, count the beats aloud, use a
            lighter pick, play the chord with three fingers, rest the bow on the string, sing the melody an octave
            lower, take the drum skin off, lower the amplifier, record the solo twice, clap the rhythm first"""
        ),
        facts=_lines(
            """A piano has 88 keys.
            Violins are made of wood.
            A scale has seven notes.
            Drums are very old."""
        ),
    ),
)

TOPICS = (HEALTH, *OTHERS)

NAMES = _phrases(
    """Anna, Ben, Carla, David, Emma, Felix, Grace, Hugo, Irene, Jonas, Kira, Leo, Maria, Nils, Olga, Paul, Rosa, Sam,
    Tina, Victor, Wanda"""
)
