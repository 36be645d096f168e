const BOUNDS: [least: number, most: number][] = [
  [0, 59],
  [0, 23],
  [1, 31],
  [1, 12],
  [0, 7],
];

const NAMES = [
  [],
  [],
  [],
  'jan feb mar apr may jun jul aug sep oct nov dec'.split(' '),
  'sun mon tue wed thu fri sat'.split(' '),
];

/** The values that one field of a cron expression allows; null for what is not understood here. */
function valuesOf(text: string, field: number): Set<number> | null {
  const [least, most] = BOUNDS[field] ?? [0, 0];
  const named = (word: string) => {
    const place = (NAMES[field] ?? []).indexOf(word.toLowerCase());
    return place < 0 ? Number(word) : place + (field === 3 ? 1 : 0);
  };
  const found = new Set<number>();
  for (const part of text.split(',')) {
    const [range = '', step = '1'] = part.split('/');
    const [first = '', last = first] = range === '*' ? [String(least), String(most)] : range.split('-');
    const [from, to, by] = [
      named(first),
      part.includes('/') && first === last ? most : named(last),
      Number(step),
    ];
    if (![from, to, by].every(Number.isInteger) || by < 1 || from < least || to > most || from > to)
      return null;
    for (let value = from; value <= to; value += by) found.add(field === 4 ? value % 7 : value);
  }
  return found;
}

const YEAR_MS = 366 * 86_400_000;

/** The next times of a cron expression in this browser's own zone; null for what is not understood here. */
export function nextTimes(expression: string, count: number, now = new Date()): Date[] | null {
  const fields = expression.trim().split(/\s+/);
  if (fields.length !== 5) return null;
  const values = fields.map(valuesOf);
  if (values.some((one) => one === null)) return null;
  const [minutes, hours, days, months, weekdays] = values as Set<number>[];
  const anyDay = fields[2] === '*';
  const anyWeekday = fields[4] === '*';
  const isDay = (at: Date) => {
    const [day, weekday] = [!!days?.has(at.getDate()), !!weekdays?.has(at.getDay())];
    return anyDay || anyWeekday ? day && weekday : day || weekday;
  };
  const found: Date[] = [];
  const at = new Date(now);
  at.setSeconds(0, 0);
  at.setMinutes(at.getMinutes() + 1);
  while (found.length < count && at.getTime() - now.getTime() < 4 * YEAR_MS) {
    if (!months?.has(at.getMonth() + 1) || !isDay(at)) at.setHours(24, 0, 0, 0);
    else if (!hours?.has(at.getHours())) at.setHours(at.getHours() + 1, 0, 0, 0);
    else {
      if (minutes?.has(at.getMinutes())) found.push(new Date(at));
      at.setMinutes(at.getMinutes() + 1);
    }
  }
  return found;
}
