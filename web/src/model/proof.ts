import { type CheckResult, isRun, type Work } from '../api/client';
import { counted } from './format';

/** A built-in check that waits for the CI of a forge. */
const CI = 'ci';

/** Tells whether a check exercises the change: it has a command, and does not also pass on corrupted files. */
export const looksAtChange = (check: CheckResult): boolean =>
  check.proved !== false && (!!check.command || check.name === CI);

/** Tells whether all checks passed and at least one of them exercises the change. */
export const areProof = (checks: CheckResult[]): boolean =>
  checks.every((check) => check.passed) && checks.some(looksAtChange);

/** The number of checks that do not exercise the change; beside proving ones, only those that pass on corrupted files. */
export function blindLine(checks: CheckResult[]): string {
  const isBlind = areProof(checks)
    ? (check: CheckResult) => check.proved === false
    : (check: CheckResult) => !looksAtChange(check);
  const blind = checks.filter(isBlind).length;
  if (blind === 0) return '';
  const verb = blind === 1 ? 'does not' : 'do not';
  if (checks.length === 1) return 'the check does not exercise the change';
  return `${blind} of ${counted(checks.length, 'check')} ${verb} exercise the change`;
}

/** Why completed work is not proven, in a few words. */
export function proofLine(work: Work): string {
  if (isRun(work))
    return work.spec.eval
      ? 'judged by a score; no check exercised the change'
      : 'no check exercised the change';
  return work.checks.length > 0 ? blindLine(work.checks) : 'no checks ran';
}
